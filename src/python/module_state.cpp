#include "python/module_state.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "python/tensor_object.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Dies with the trainer's ModelState, under the GIL.
class ModeSwitch {
 public:
  explicit ModeSwitch(py::object module) : module_(std::move(module)) {}

  void set_training(bool training) {
    const py::gil_scoped_acquire gil;
    if (training) return restore();
    modes_.clear();
    for (const py::handle part : module_.attr("modules")()) {
      modes_.emplace_back(py::reinterpret_borrow<py::object>(part), part.attr("training").cast<bool>());
    }
    try {
      module_.attr("eval")();
    } catch (...) {
      restore();
      throw;
    }
  }

 private:
  void restore() {
    for (const auto& [part, training] : modes_) part.attr("training") = training;
    modes_.clear();
  }

  py::object module_;
  std::vector<std::pair<py::object, bool>> modes_;
};

}  // namespace

ModelState module_state(const py::object& module) {
  if (!py::isinstance(module, py::module_::import("torch").attr("nn").attr("Module"))) {
    throw py::type_error(fmt::format("model: wanted a torch.nn.Module, found {}", Py_TYPE(module.ptr())->tp_name));
  }
  ModelState state;
  const auto read = [&module](const char* list) {
    std::vector<std::pair<std::string, at::Tensor>> named;
    for (const py::handle item : module.attr(list)()) {
      const auto pair = py::reinterpret_borrow<py::tuple>(item);
      auto name = py::str(pair[0]).cast<std::string>();
      at::Tensor tensor = tensor_of(pair[1], name);
      named.emplace_back(std::move(name), std::move(tensor));
    }
    return named;
  };
  state.parameters = read("named_parameters");
  state.buffers = read("named_buffers");
  if (state.parameters.empty()) {
    fail(ErrorCode::invalid_argument, "python: model: {} has no parameters to train", Py_TYPE(module.ptr())->tp_name);
  }
  // Owners: the copies of the switch.
  auto mode = std::make_shared<ModeSwitch>(module);
  state.set_training = [mode](bool training) { mode->set_training(training); };
  return state;
}

}  // namespace headrace::python
