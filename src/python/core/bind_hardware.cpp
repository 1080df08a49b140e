#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "core/exec/cores.h"
#include "core/hardware/machine.h"
#include "core/hardware/scheduling.h"
#include "python/core/bindings.h"
#include "python/core/cuda_pages.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

nb::dict dict_of(const HardwareSetting& setting) {
  nb::dict dict;
  dict["name"] = str_of(setting.name);
  dict["requested"] = str_of(setting.requested);
  dict["before"] = str_of(setting.before);
  dict["now"] = str_of(setting.now);
  dict["how"] = str_of(to_string(setting.how));
  dict["reason"] = str_of(setting.reason);
  return dict;
}

}  // namespace

// Under the GIL throughout: a change takes microseconds, and one at a time is what it wants.
void register_hardware(nb::module_& module) {
  nb::class_<HardwareChange> change(module, "HardwareChange",
                                    "A setting of this process that was changed. Undone by undo() alone.");
  change
      .def_prop_ro(
          "setting", [](const HardwareChange& self) { return dict_of(self.setting()); },
          "name, requested, before, now, how (\"by call\", \"not applied\") and reason.")
      .def(
          "undo", [](HardwareChange& self) { return dict_of(self.undo()); },
          "Puts back what was there before the change; a second call changes nothing. The same keys.");
  refuse_pickling(change, "a HardwareChange belongs to the process that it changed; it cannot be pickled");
  module.def("set_niceness", &set_niceness, nb::arg("niceness"),
             "Of all threads of this process, -20 to 19; those that it starts later inherit it.");
  module.def(
      "set_affinity", [](const std::string& cores) { return set_affinity(cores); }, nb::arg("cores"),
      "Binds all threads of this process to cores among those that it has: \"0-3,6\", or \"node0\".");
  module.def(
      "usable_cores", [] { return detect_machine().cores_usable; },
      "Cores that this process may use, by affinity and the quota of a container, rounded up.");
  module.def(
      "oversubscription",
      [](std::int64_t workers, std::int64_t compute_threads) {
        return oversubscription(workers, compute_threads, detect_machine().cores_usable);
      },
      nb::arg("workers"), nb::arg("compute_threads"),
      "What is wrong with so many on the cores of this process, with the numbers; \"\" where nothing is.");
  module.def(
      "lock_pages", &lock_pages_by, nb::arg("library"), nb::arg("device"),
      "Has Loaders page-lock the blocks that they allocate from now on, by the CUDA runtime of torch's library at "
      "this path. \"\", or why not.");
  module.def(
      "page_locking",
      [] {
        const PageLocking told = page_locking();
        return std::tuple(told.is_installed, told.asked, told.refused, told.last_refusal);
      },
      "Whether blocks are locked from now on, by whomever; blocks that were to be locked by lock_pages(), those of "
      "them that CUDA refused, and its last reason.");
}

}  // namespace headrace::python
