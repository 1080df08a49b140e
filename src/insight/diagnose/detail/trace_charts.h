// Inline SVG of what was recorded: a step's waterfall, flame graphs, the pairs behind a speedup. As charts.h has it.
#pragma once

#include <headrace/flame_graph.h>
#include <headrace/report.h>
#include <headrace/step_waterfall.h>

#include <span>
#include <string>
#include <vector>

namespace headrace::detail {

// The fills of the parts of a step, which bars, frames and swatches use: once a page.
std::string part_patterns();

// A line for each row of at least one, with its bars below its name; `id` must be unique.
std::string waterfall_svg(const StepWaterfall& waterfall, const std::string& id);

// The frames of each thread of a graph.
std::vector<std::span<const FlameGraph::Frame>> threads_of(const FlameGraph& graph);
// Of one thread, as threads_of() gives it.
std::string flame_svg(std::span<const FlameGraph::Frame> frames, const std::string& id);

// A dot for each pair, in order, over a line where nothing is gained and the speedup with its interval. Needs a finite
// speedup and interval, and one finite ratio.
std::string pairs_svg(const Report& report);

}  // namespace headrace::detail
