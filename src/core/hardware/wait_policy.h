// What an idle compute thread does: a setting of libgomp that only the environment of a fresh process can make.
#pragma once

#include <headrace/error.h>

#include "core/hardware/compute_options.h"

namespace headrace {

// What OMP_WAIT_POLICY said when this process began, which libgomp reads once, when it is loaded; `system` where it
// named no policy or has_spin_count().
WaitPolicy wait_policy_of_environment() noexcept;
// `system` holds whatever the environment says, another policy where it is the environment's. Changes nothing: the
// executable sets the variable and runs itself again; a guest of another program, such as a Python module, cannot.
Applied wait_policy_in_force(WaitPolicy requested);
// Whether GOMP_SPINCOUNT says how long a thread spins before it sleeps: libgomp then asks no policy.
bool has_spin_count() noexcept;

}  // namespace headrace
