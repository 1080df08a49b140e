// What hooks of a loop call in every step, past nanobind's dispatch: where a step's own code has driven a dispatch out
// of the processor's caches, it takes several times what it does in a loop of its own (docs/decisions/0029).
#pragma once

#include <nanobind/nanobind.h>

#include "insight/tune/loop_units.h"
#include "python/core/loop_units_object.h"

namespace headrace::python {

// Tuples of functions that take positional arguments alone and do not keep their object alive: whoever holds one holds
// the object, too. Exceptions are those of the methods.

// see_call(has_gradients, trains, numbers), begin_step(optimizer, put_other_last) and end_step(optimizer, now_s,
// put_other_last), which but for the last argument LoopUnits has. That one is called without arguments where
// LoopUnitsObject::is_at_work_here(), and may raise KeyError.
nanobind::tuple hooks_of(LoopUnitsObject& units);
// note_batch(wait_s) as EpochCounts has it.
nanobind::tuple hooks_of(EpochCounts& epochs);

}  // namespace headrace::python
