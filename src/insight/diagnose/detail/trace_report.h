// What a report says of recorded steps, for the page and for a terminal.
#pragma once

#include <headrace/profile_summary.h>
#include <headrace/report.h>

#include <string>
#include <vector>

namespace headrace::detail {

// Percentiles of the steps, one step over time, and flame graphs with the longest spans: three parts of the page. Of a
// training, and of a run that tunes itself, empty where no steps were recorded.
std::string traces_html(const Report& report);

// Of the steps and of each of their parts that took time, "step" first.
std::vector<SpanStatistics> step_statistics(const TimeSplit& split);
// "38 steps: half of them take at most 41.2 ms, 5 in 100 more than 48.0 ms, 1 in 100 more than 61.7 ms."
std::string percentiles_text(const Report::Traced& traced);
// "Step 17 of 38, the one of the middle duration, takes 41.2 ms."
std::string waterfall_text(const StepWaterfall& waterfall);
// How much is not shown, and how many events are lost; empty: all is there.
std::string left_out_text(const StepWaterfall& waterfall);
std::string left_out_text(const FlameGraph& graph);
std::string dropped_text(const Report::Traced& traced);
// Whether a report without traces has to say so.
bool says_no_traces(const Report& report);

}  // namespace headrace::detail
