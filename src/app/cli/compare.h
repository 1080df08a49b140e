// The verb compare: is NEW slower than OLD, larger, or wrong?
#pragma once

#include "app/cli/console.h"
#include "app/cli/invocation.h"

namespace headrace {

// Runs OLD and NEW in pairs, each run in a process of its own, until it is decided; or judges stored runs; with --aa
// runs OLD against itself. Exit code 3: a regression, a missing metric, wrong outputs, or a drift over builds that goes
// on; with --aa: more false alarms than the false discovery rate. A failure is in the JUnit, Markdown and HTML files,
// too, also one that leaves no verdict, whose Error is thrown on; they are there from the beginning, as a failure.
int run_compare(const Invocation& invocation, Console& console);

}  // namespace headrace
