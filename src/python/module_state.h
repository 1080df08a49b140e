// A torch.nn.Module as the trainer sees a model.
#pragma once

#include <headrace/model_state.h>
#include <pybind11/pybind11.h>

namespace headrace::python {

// All parameters, frozen ones too, and all buffers, under their names; the tensors are the module's own. The switch to
// evaluation remembers each submodule's mode and the switch back restores that: a batch norm that the user froze stays
// frozen. TypeError: no torch.nn.Module. Error{invalid_argument}: no parameters.
ModelState module_state(const pybind11::object& module);

}  // namespace headrace::python
