"""The threads of this process, for tests that see to it that none is left."""

import os

PF_EXITING = 0x4  # Of linux/sched.h, and told by proc(5): a thread has it before anybody can have joined it.


def running_threads() -> dict[str, str]:
    """Names by id. A thread that has ended may be listed for as long as the machine is busy: it is none."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat") as file:
                name, rest = file.read().partition("(")[2].rpartition(")")[::2]
        except (FileNotFoundError, ProcessLookupError):  # It is listed no more.
            continue
        if not int(rest.split()[6]) & PF_EXITING:
            found[task] = name
    return found
