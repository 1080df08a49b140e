// What hooks of a loop call in every step, past pybind11's dispatch: where a step's own code has driven that out of the
// processor's caches, that takes several times what a call in a loop of its own does (docs/decisions/0029).
#pragma once

#include <pybind11/pybind11.h>

#include "insight/tune/loop_units.h"
#include "python/loop_units_object.h"

namespace headrace::python {

// Tuples of functions that take positional arguments alone and do not keep their object alive: whoever holds one holds
// the object, too. Exceptions are those of the methods.

// see_call(has_gradients, trains, numbers), begin_step(optimizer), end_step(optimizer, now_s) as LoopUnits has them.
pybind11::tuple hooks_of(LoopUnitsObject& units);
// note_batch(wait_s) as EpochCounts has it.
pybind11::tuple hooks_of(EpochCounts& epochs);

}  // namespace headrace::python
