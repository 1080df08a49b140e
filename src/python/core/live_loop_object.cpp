#include "python/core/live_loop_object.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "python/core/error_codes.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// A headrace.Error as the Error that it stands for: the contract of LiveLoop says what may be refused by one.
Error error_of(const nb::python_error& raised) {
  return {code_named(text_of(nb::getattr(raised.value(), "code"))), text_of(raised.value())};
}

ReplayDistance distance_of(const nb::dict& found) {
  ReplayDistance distance;
  distance.relative_l2 = real_of(found["relative_l2"]);
  distance.cosine = real_of(found["cosine"]);
  distance.worst_tensor = real_of(found["worst_tensor"]);
  distance.worst_name = text_of(found["worst_name"]);
  distance.output_difference = real_of(found["output_difference"]);
  distance.finite = truth_of(found["finite"]);
  distance.bit_equal = truth_of(found["bit_equal"]);
  distance.other_draws = truth_of(found["other_draws"]);
  distance.seconds = real_of(found["seconds"]);
  distance.update_difference = nb::cast<std::optional<double>>(found["update_difference"]);
  return distance;
}

}  // namespace

void LiveLoopObject::apply(const Settings& settings) {
  from_python([&] {
    try {
      object_.attr("apply")(settings);
    } catch (const nb::python_error& raised) {
      if (!raised.matches(imported("headrace.errors", "Error"))) throw;
      throw error_of(raised);
    }
  });
}

Replay LiveLoopObject::replay(const Settings& reference, const Settings& candidate, ReplayUse use) {
  return from_python([&]() -> Replay {
    const auto found = nb::cast<nb::dict>(object_.attr("replay")(reference, candidate, use == ReplayUse::compare));
    if (!found.contains("failure")) return {distance_of(found)};
    const auto [code, sentence] = nb::cast<std::pair<std::string, std::string>>(found["failure"]);
    return {std::nullopt, {code_named(code), sentence}};
  });
}

std::optional<double> LiveLoopObject::distance_between_calls() {
  return from_python([&] { return nb::cast<std::optional<double>>(object_.attr("distance_between_calls")()); });
}

std::optional<std::int64_t> LiveLoopObject::updates_left() {
  return from_python([&] { return nb::cast<std::optional<std::int64_t>>(object_.attr("updates_left")()); });
}

std::int64_t LiveLoopObject::queued_units() {
  return count_of("queued_units");
}

std::int64_t LiveLoopObject::units_ahead() {
  return count_of("units_ahead");
}

std::int64_t LiveLoopObject::count_of(const char* method) const {
  return from_python(
      [&]() -> std::int64_t { return nb::hasattr(object_, method) ? integer_of(object_.attr(method)()) : 0; });
}

bool LiveLoopObject::agree(bool yes) {
  return from_python([&] { return has_others_ ? truth_of(object_.attr("agree")(yes)) : yes; });
}

}  // namespace headrace::python
