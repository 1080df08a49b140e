// The verb pack: a data set in one file, checked and unpacked; the entropy index of a folder of photographs.
#pragma once

#include "app/cli/console.h"
#include "app/cli/invocation.h"

namespace headrace {

// Exit code 130 or 143 when a signal stopped it; nothing is changed then.
int run_pack(const Invocation& invocation, Console& console);

}  // namespace headrace
