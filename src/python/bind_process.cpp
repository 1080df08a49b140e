#include <pybind11/stl.h>

#include <string>
#include <tuple>

#include "engine/assembly/process_settings.h"
#include "python/bindings.h"

namespace headrace::python {

namespace py = pybind11;

void register_process(py::module_& module) {
  module.def("process_settings", &process_settings, "Settings of the whole process that are knobs, as TOML text.");
  module.def(
      "apply_process_setting",
      [](const std::string& key, const std::string& value) {
        const Applied applied = apply_process_setting(key, value);
        return std::tuple(applied.requested, applied.applied, applied.reason);
      },
      py::arg("key"), py::arg("value"), "Applies one of them; returns requested, applied and why they differ.");
}

}  // namespace headrace::python
