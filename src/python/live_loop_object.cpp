#include "python/live_loop_object.h"

#include <pybind11/stl.h>

#include <string>
#include <tuple>

namespace headrace::python {
namespace {

namespace py = pybind11;

// A headrace.Error as the Error that it stands for: the contract of LiveLoop says what may be refused by one.
Error error_of(const py::error_already_set& raised) {
  return {code_named(py::cast<std::string>(raised.value().attr("code"))),
          py::cast<std::string>(py::str(raised.value()))};
}

ReplayDistance distance_of(const py::dict& found) {
  ReplayDistance distance;
  distance.relative_l2 = found["relative_l2"].cast<double>();
  distance.cosine = found["cosine"].cast<double>();
  distance.worst_tensor = found["worst_tensor"].cast<double>();
  distance.worst_name = found["worst_name"].cast<std::string>();
  distance.output_difference = found["output_difference"].cast<double>();
  distance.finite = found["finite"].cast<bool>();
  distance.bit_equal = found["bit_equal"].cast<bool>();
  distance.other_draws = found["other_draws"].cast<bool>();
  distance.seconds = found["seconds"].cast<double>();
  distance.update_difference = found["update_difference"].cast<std::optional<double>>();
  return distance;
}

}  // namespace

ErrorCode code_named(std::string_view name) noexcept {
  using enum ErrorCode;
  for (const ErrorCode code :
       {invalid_argument, not_found, corrupt_data, io, unsupported, out_of_memory, numerics, cancelled}) {
    if (name == to_string(code)) return code;
  }
  return internal;
}

ErrorCode code_of(const py::error_already_set& raised) {
  try {
    const py::object found = py::module_::import("headrace._kept_call").attr("code_of")(raised.value());
    return code_named(py::cast<std::string>(found));
  } catch (const py::error_already_set&) {  // Of its __str__.
    return ErrorCode::internal;
  }
}

void LiveLoopObject::apply(const Settings& settings) {
  try {
    object_.attr("apply")(settings);
  } catch (const py::error_already_set& raised) {
    if (!raised.matches(py::module_::import("headrace.errors").attr("Error"))) throw;
    throw error_of(raised);
  }
}

Replay LiveLoopObject::replay(const Settings& reference, const Settings& candidate, ReplayUse use) {
  const auto found = object_.attr("replay")(reference, candidate, use == ReplayUse::compare).cast<py::dict>();
  if (!found.contains("failure")) return {distance_of(found)};
  const auto [code, sentence] = found["failure"].cast<std::tuple<std::string, std::string>>();
  return {std::nullopt, {code_named(code), sentence}};
}

std::optional<double> LiveLoopObject::distance_between_calls() {
  return object_.attr("distance_between_calls")().cast<std::optional<double>>();
}

std::optional<std::int64_t> LiveLoopObject::updates_left() {
  return object_.attr("updates_left")().cast<std::optional<std::int64_t>>();
}

std::int64_t LiveLoopObject::queued_units() {
  if (!py::hasattr(object_, "queued_units")) return 0;
  return object_.attr("queued_units")().cast<std::int64_t>();
}

std::int64_t LiveLoopObject::units_ahead() {
  if (!py::hasattr(object_, "units_ahead")) return 0;
  return object_.attr("units_ahead")().cast<std::int64_t>();
}

bool LiveLoopObject::agree(bool yes) {
  return has_others_ ? object_.attr("agree")(yes).cast<bool>() : yes;
}

}  // namespace headrace::python
