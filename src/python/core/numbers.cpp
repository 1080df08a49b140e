#include "python/core/numbers.h"

#include <cstdint>
#include <string>

#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

template <class Number>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<float> = "float32";
template <>
constexpr const char* kTypeName<double> = "float64";
template <>
constexpr const char* kTypeName<std::uint8_t> = "uint8";

std::string attribute_text(nb::handle object, const char* name) {
  return text_of(nb::getattr(object, name, nb::none()));
}

}  // namespace

// A DLPack capsule, and not the tensor, is what nanobind is given: torch makes it in Python, and what is raised there,
// Ctrl-C too, nanobind would take for a tensor of another kind.
template <class Number>
FlatNumbers<Number>::FlatNumbers(nb::handle flat) {
  const nb::object capsule = flat.attr("__dlpack__")();
  if (nb::try_cast(capsule, array_, /*convert=*/false)) return;
  fail(ErrorCode::invalid_argument, "python: wanted a flat tensor of {} on the CPU, found {} of type {} and shape {}",
       kTypeName<Number>, class_name(flat), attribute_text(flat, "dtype"), attribute_text(flat, "shape"));
}

template class FlatNumbers<float>;
template class FlatNumbers<double>;
template class FlatNumbers<std::uint8_t>;

}  // namespace headrace::python
