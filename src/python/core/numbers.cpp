#include "python/core/numbers.h"

#include <cstdint>

#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

// A DLPack capsule, and not the tensor, is what nanobind is given: torch makes it in Python, and what is raised there,
// Ctrl-C too, nanobind would take for a tensor of another kind.
template <class Number>
FlatNumbers<Number>::FlatNumbers(nb::handle flat) {
  const nb::object capsule = flat.attr("__dlpack__")();
  const bool is_flat = nb::try_cast(capsule, array_, /*convert=*/false);
  HEADRACE_CHECK(is_flat, "python: wanted a flat tensor, found another {}", class_name(flat));
}

template class FlatNumbers<float>;
template class FlatNumbers<double>;
template class FlatNumbers<std::uint8_t>;

}  // namespace headrace::python
