// How the operating system schedules this process: its niceness, and the cores that it may run on.
//
// Linux has both for each thread (sched(7), sched_setaffinity(2)). They are set for all threads of the process, those
// of other libraries too, and threads and processes that are started later inherit them from the one that starts them.
// Costs two system calls a thread, some 10 us for a process of ten. One change at a time. What is not applied leaves
// all as it was.
#pragma once

#include <cstdint>
#include <string>

#include "core/hardware/hardware_change.h"

namespace headrace {

// -20, the most of a core's time, to 19; 0 is usual. Absolute: it is not added to the present one. Without
// CAP_SYS_NICE, or RLIMIT_NICE that grants it, niceness cannot be lowered: then nothing is changed and the reason
// begins with "not permitted". Nor can a raised one be undone without, which the reason says beforehand, although it is
// applied then; both are found out by a thread of its own that tries it and ends. Error{invalid_argument}: another
// number; Error{io}: /proc/self/task cannot be read.
HardwareChange set_niceness(std::int64_t niceness);

// `cores` is a list as the kernel writes them, "0-3,6", or "node0" for those of a NUMA node that this process may use.
// A change can only narrow what holds: cores outside of the present masks of the threads, from which the kernel leaves
// out what a container does not grant, are Error{invalid_argument} that names them, as is what is no list, and a node
// that is not there or has none of the process's cores. Undo gives each thread its own mask of before, and those that
// were started since the main thread's. Error{io}: /proc/self/task cannot be read.
// `root` is prefixed to /sys paths, for tests on a fake tree.
HardwareChange set_affinity(const std::string& cores, const std::string& root = "");

}  // namespace headrace
