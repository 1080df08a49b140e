// What a report for a terminal says of recorded steps.
#pragma once

#include <headrace/report.h>

#include "insight/diagnose/detail/text_page.h"

namespace headrace::detail {

// Percentiles, one step over time, and the stacks with the most time. Nothing of a training, or of a run that tunes
// itself, of which no steps were recorded.
void write_traces(TextPage& page, const Report& report);

}  // namespace headrace::detail
