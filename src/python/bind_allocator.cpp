#include <headrace/option_fields.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "app/recipe/recipe.h"
#include "python/bindings.h"
#include "torch/tensor/allocator.h"
#include "torch/tensor/tensor_memory.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

std::tuple<std::string, std::string, std::string> told(const Applied& applied) {
  return {applied.requested, applied.applied, applied.reason};
}

std::optional<std::int64_t> counted(std::int64_t bytes) {
  return bytes < 0 ? std::nullopt : std::optional(bytes);
}

}  // namespace

void register_allocator(py::module_& module) {
  module.def(
      "allocator", [] { return to_toml(std::string(choice_name(allocator_in_force()))); },
      "Where tensors live: the setting compute.allocator as TOML text.");
  module.def(
      "set_allocator",
      [](const std::string& value) {
        Recipe recipe;
        apply_settings(recipe, {{"compute.allocator", value}});
        return told(apply_allocator(recipe.compute.allocator));
      },
      py::arg("value"), "Applies that setting; returns requested, applied and why they differ.");
  module.def(
      "set_tensor_memory_limit", [](std::int64_t bytes) { return told(set_tensor_memory_limit(bytes)); },
      py::arg("bytes"),
      "Bytes that CPU tensors of this process may hold; 0: any. Returns requested, applied and why they differ.");
  module.def(
      "watch_tensor_memory", [] { return told(watch_tensor_memory()); },
      "Counts what CPU tensors hold from here on; returns requested, applied and why they differ.");
  module.def(
      "tensor_memory",
      [] { return std::tuple(counted(tensor_bytes()), counted(peak_tensor_bytes()), tensor_memory_limit()); },
      "Bytes that CPU tensors hold of what was allocated since somebody counts, the most they held, both None where "
      "nobody does, and the limit, 0 for none.");
  module.def("reset_peak_tensor_memory", &reset_peak_tensor_bytes, "The most they held is what they hold now.");
}

}  // namespace headrace::python
