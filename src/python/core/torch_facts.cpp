#include "python/core/torch_facts.h"

#include <nanobind/nanobind.h>

#include "core/hardware/machine.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

std::int64_t compute_threads() {
  const nb::gil_scoped_acquire held;
  return from_python([] {
    const nb::object torch = loaded("torch");
    return torch.is_none() ? detect_machine().cores_usable : integer_of(torch.attr("get_num_threads")());
  });
}

}  // namespace headrace::python
