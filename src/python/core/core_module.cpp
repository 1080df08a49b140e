// headrace._core: what needs no LibTorch, for any Python from 3.11 on. What each bind_<topic>.cpp registers.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "app/cli/torch_folder.h"
#include "core/base/build_info.h"
#include "python/core/bindings.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// ImportError where the interpreter has loaded a _core before: that of another installed copy, or this one, which
// sys.modules has lost since. Its types would be registered twice, and libheadrace.so, which both would share, hold
// what is global for two. The interpreter's own dict remembers it until the process ends. And in an interpreter that is
// not the process' first one: headrace's own threads take the lock of that one.
void claim_process(const nb::module_& module) {
  PyInterpreterState* const interpreter = PyInterpreterState_Get();
  if (PyInterpreterState_GetID(interpreter) != 0) {
    throw nb::import_error(
        "headrace cannot be loaded: wanted the first interpreter of a process, found another one; start a process for "
        "it");
  }
  constexpr const char* kKey = "headrace._core";
  PyObject* const kept = PyInterpreterState_GetDict(interpreter);
  if (kept == nullptr) return;  // Then nothing can be remembered, and both are taken.
  nb::dict claims = nb::borrow<nb::dict>(kept);
  const std::string file = text_of(nb::getattr(module, "__file__", nb::str(kKey)));
  if (!claims.contains(kKey)) {
    claims[kKey] = str_of(file);
    return;
  }
  const nb::object kept_file = claims[kKey];
  const std::string first = text_of(kept_file);
  std::string sentence = fmt::format(
      "{} was loaded in this process before, and Python has forgotten it: that is done once in a process; start a new "
      "one",
      file);
  if (first != file) {
    sentence = fmt::format(
        "{} cannot be loaded beside {}: a process has room for one headrace; start a new one, and take one of the two "
        "off sys.path",
        file, first);
  }
  throw nb::import_error(sentence.c_str());
}

void register_build(nb::module_& module) {
  module.attr("__version__") = build_info().version;
  module.def(
      "torch_built_for", [] { return std::string(torch_built_for()); },
      "The version of torch that the engine was compiled against, as \"2.11.0\"; \"\": this build has none.");
}

}  // namespace
}  // namespace headrace::python

NB_MODULE(_core, module) {
  nanobind::set_leak_warnings(false);  // Objects that Python itself does not free at its end are no finding of ours.
  headrace::python::claim_process(module);
  headrace::python::register_build(module);
  headrace::python::register_errors(module);
  headrace::python::register_loader(module);
  headrace::python::register_pack(module);
  headrace::python::register_transforms(module);
  headrace::python::register_insight(module);
  headrace::python::register_operators(module);
  headrace::python::register_watch(module);
  headrace::python::register_knobs(module);
  headrace::python::register_strategies(module);
  headrace::python::register_tune(module);
  headrace::python::register_live(module);
  headrace::python::register_hardware(module);
  headrace::python::register_performance(module);
  headrace::python::register_monitor(module);
  headrace::python::register_compare(module);
}
