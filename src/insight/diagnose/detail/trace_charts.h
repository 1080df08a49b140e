// Inline SVG of what was recorded: a step's waterfall, flame graphs, the pairs behind a speedup. As charts.h has it.
#pragma once

#include <headrace/flame_graph.h>
#include <headrace/report.h>
#include <headrace/step_waterfall.h>

#include <optional>
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

// What was measured in pairs, on one scale.
struct PairsChart {
  std::string id, title, description;  // Title and description are escaped already.
  std::vector<double> values;          // Of each pair, in order, kPairsMax at most; one that is not finite has no dot.
  double none = 1;                     // Where nothing has changed.
  double middle = 1;                   // Finite.
  std::optional<double> low, high;     // The interval, finite; nullopt: it is unknown.
  std::vector<double> limits{};        // Of what still counts as no change, finite.
  double least_room = 0.01;            // Above and below all of these, on their scale.
  double left = 12;                    // Percent of the width, for labels.
  std::string (*label)(double value) = nullptr;
};
// A dot for each pair, over a line where nothing has changed and the middle with its interval.
std::string pairs_svg(const PairsChart& chart);
// Of the pairs behind a speedup. Needs a finite speedup and interval, and one finite ratio.
std::string pairs_svg(const Report& report);

}  // namespace headrace::detail
