// What a recording cost the run that it is of.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/trace.h>

#include <optional>

namespace headrace {

// Seconds that recording a span takes here, at least: its two reads of the clock. Measured, in about a millisecond.
double span_seconds();

// profiling_overhead: recording took more than 1 % of the time of a thread, at `span_s` a span; with what would save
// most of it. An operator costs more than a span, so that this is the least that it took. nullopt: it took less.
std::optional<Finding> profiling_overhead(const TraceRecord& record, double span_s);

}  // namespace headrace
