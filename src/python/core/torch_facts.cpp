#include "python/core/torch_facts.h"

#include "core/hardware/machine.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

nb::object tensor_type() {
  const nb::object torch = loaded("torch");
  return torch.is_none() ? torch : nb::getattr(torch, "Tensor");
}

std::int64_t compute_threads() {
  const nb::gil_scoped_acquire held;
  return from_python([] {
    const nb::object torch = loaded("torch");
    return torch.is_none() ? detect_machine().cores_usable : integer_of(torch.attr("get_num_threads")());
  });
}

std::string torch_version() {
  const nb::gil_scoped_acquire held;
  return from_python([]() -> std::string {
    const nb::object torch = loaded("torch");
    if (torch.is_none()) return "none";
    const std::string version = text_of(nb::getattr(torch, "__version__"));
    return version.substr(0, version.find('+'));
  });
}

MachinePeaks peaks_by(const nb::object& multiply) {
  const Machine machine = detect_machine();
  return machine_peaks({machine.cpu, machine.cores_usable, compute_threads(), "torch " + torch_version()},
                       {.multiply = [&](std::int64_t n) { from_python([&] { multiply(n); }); }});
}

}  // namespace headrace::python
