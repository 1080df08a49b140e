// What each bind_<topic>.cpp puts into headrace._core.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace::python {

void register_loader(nanobind::module_& module);
void register_pack(nanobind::module_& module);
void register_transforms(nanobind::module_& module);
void register_insight(nanobind::module_& module);
void register_operators(nanobind::module_& module);
void register_watch(nanobind::module_& module);
void register_knobs(nanobind::module_& module);
void register_strategies(nanobind::module_& module);
void register_tune(nanobind::module_& module);
void register_live(nanobind::module_& module);
void register_hardware(nanobind::module_& module);
void register_performance(nanobind::module_& module);
void register_monitor(nanobind::module_& module);
void register_compare(nanobind::module_& module);

// Objects of `bound` say why they do not go through pickle, and so into no copy and to no other process: TypeError, as
// Python has it of what cannot be pickled.
template <class Bound>
void refuse_pickling(nanobind::class_<Bound>& bound, const char* reason) {
  bound.def("__reduce__",
            [reason](const nanobind::object& /*self*/) -> nanobind::object { throw nanobind::type_error(reason); });
}

}  // namespace headrace::python
