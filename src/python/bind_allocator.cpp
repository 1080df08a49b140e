#include <headrace/option_fields.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>

#include "app/recipe/recipe.h"
#include "python/bindings.h"
#include "torch/tensor/allocator.h"

namespace headrace::python {

namespace py = pybind11;

void register_allocator(py::module_& module) {
  module.def(
      "allocator", [] { return to_toml(std::string(choice_name(allocator_in_force()))); },
      "Where tensors live: the setting compute.allocator as TOML text.");
  module.def(
      "set_allocator",
      [](const std::string& value) {
        Recipe recipe;
        apply_settings(recipe, {{"compute.allocator", value}});
        const Applied applied = apply_allocator(recipe.compute.allocator);
        return std::tuple(applied.requested, applied.applied, applied.reason);
      },
      py::arg("value"), "Applies that setting; returns requested, applied and why they differ.");
}

}  // namespace headrace::python
