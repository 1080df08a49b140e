// The steps of a profile of operators, as the steps and parts that a time split knows.
#pragma once

#include <headrace/trace.h>

namespace headrace {

// The record with a span step::kStep for each operators::kStep, and its parts as the operators of its thread show them:
// data_wait, what a torch DataLoader or a headrace Loader is asked for; backward, from the first node of autograd to
// the last one that no other part interrupts; optimizer, an optimizer's step and zero_grad, and what comes between the
// backward and them; forward, the operators before a backward. What follows the last of these is in no part, as is a
// step without a backward. A record that has steps of its own, or none of operators, comes back as it is.
// Error{corrupt_data}: the record contradicts itself. Pure; costs a copy and a sort of the record's events.
TraceRecord with_operator_steps(TraceRecord record);

}  // namespace headrace
