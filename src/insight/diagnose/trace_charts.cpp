#include "insight/diagnose/detail/trace_charts.h"

#include <fmt/format.h>
#include <headrace/operator_category.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/detail/svg.h"

namespace headrace::detail {
namespace {

using Frame = FlameGraph::Frame;

// What a span is, as the class of its fill. The parts of a step have the numbers that named_parts() gives them.
std::string fill_of(const std::string& name, const std::string& category) {
  static constexpr std::array<const SpanName*, 5> kParts{&step::kDataWait, &step::kTransfer, &step::kForward,
                                                         &step::kBackward, &step::kOptimizer};
  if (category == step::kStep.category) {
    const auto found =
        std::find_if(kParts.begin(), kParts.end(), [&](const SpanName* part) { return name == part->text; });
    return fmt::format("part part-{}", found - kParts.begin());  // A step of its own is "other".
  }
  if (category == "wait") return "part span-wait";
  if (category.starts_with(operators::kCategory)) return "part span-operator";
  return "part span-work";
}

constexpr int kHeading = 24, kRow = 32, kBarTop = 16, kBar = 10;  // Pixels.

std::string row_figure(const StepWaterfall::Row& row) {
  return row.calls > 1 ? fmt::format("{} ({} times)", time_text(row.total_s), row.calls) : time_text(row.total_s);
}

std::string row_svg(const StepWaterfall::Row& row, double length_s, int y) {
  constexpr double kNarrowest = 0.2;  // Percent: still to be seen.
  const std::string fill = fill_of(row.name, row.category), figure = row_figure(row);
  std::string svg = fmt::format(
      "<g><title>{}: {}</title><text x=\"{}\" y=\"{}\">{}</text><text class=\"figure\" x=\"100%\" y=\"{}\">{}</text>",
      name_html(row.name), figure, 10 * row.depth, y + 12, label_html(row.name), y + 12, figure);
  for (const StepWaterfall::Bar& bar : row.bars) {
    const double from = 100 * bar.begin_s / length_s, width = 100 * (bar.end_s - bar.begin_s) / length_s;
    svg += fmt::format("<rect class=\"{}\" x=\"{:.2f}%\" y=\"{}\" width=\"{:.2f}%\" height=\"{}\"/>", fill, from,
                       y + kBarTop, std::max(width, kNarrowest), kBar);
  }
  return svg + "</g>\n";
}

std::string waterfall_description(const StepWaterfall& waterfall) {
  constexpr std::size_t kNamed = 8;
  std::string text;
  std::size_t named = 0;
  for (const StepWaterfall::Row& row : waterfall.rows) {
    if (row.depth > 0 || !row.is_own_thread || row.bars.empty() || named == kNamed) continue;
    ++named;
    text += fmt::format("{} from {} to {}; ", label_html(row.name), time_text(row.bars.front().begin_s),
                        time_text(row.bars.back().end_s));
  }
  return text + fmt::format("the step ends after {}.", time_text(waterfall.length_s));
}

constexpr int kFrame = 20;  // Pixels.

std::string frame_svg(const Frame& frame, std::int64_t thread_ns) {
  constexpr double kNamed = 4;  // Percent of the width that a name needs to begin in.
  const double whole = static_cast<double>(thread_ns);
  const double width = 100 * static_cast<double>(frame.total_ns) / whole;
  const std::string fill = frame.depth == 0 ? "part span-thread" : fill_of(frame.name, frame.category);
  // A chart of its own, so that a name is cut at the frame's edge.
  std::string svg = fmt::format(
      "<svg x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" height=\"{}\"><title>{}: {}, {}, {} times</title><rect "
      "class=\"{}\" "
      "width=\"100%\" height=\"100%\"/>",
      100 * static_cast<double>(frame.from_ns) / whole, static_cast<int>(frame.depth) * kFrame, width, kFrame - 1,
      name_html(frame.name), percent_text(static_cast<double>(frame.total_ns) / whole),
      time_text(seconds(frame.total_ns)), frame.calls, fill);
  if (width >= kNamed) svg += fmt::format("<text x=\"4\" y=\"14\">{}</text>", label_html(frame.name));
  return svg + "</svg>\n";
}

std::string flame_description(std::span<const Frame> frames) {
  constexpr std::size_t kNamed = 6;
  std::vector<const Frame*> longest;
  for (const Frame& frame : frames.subspan(1)) {
    if (frame.self_ns > 0) longest.push_back(&frame);
  }
  std::stable_sort(longest.begin(), longest.end(),
                   [](const Frame* a, const Frame* b) { return a->self_ns > b->self_ns; });
  longest.resize(std::min(longest.size(), kNamed));
  std::string text = "Most time of their own: ";
  for (const Frame* frame : longest) {
    const double share = static_cast<double>(frame->self_ns) / static_cast<double>(frames.front().total_ns);
    text += fmt::format("{} {}; ", label_html(frame->name), percent_text(share));
  }
  return text + fmt::format("{} frames.", frames.size());
}

}  // namespace

std::string part_patterns() {
  return "<svg class=\"patterns\" aria-hidden=\"true\"><defs>"
         "<pattern id=\"part-0\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect class=\"k0\" "
         "width=\"6\" height=\"6\"/><path class=\"line\" d=\"M-1 7 7 -1M-1 1 1 -1M5 7 7 5\"/></pattern>"
         "<pattern id=\"part-1\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><rect class=\"k1\" "
         "width=\"5\" height=\"5\"/><circle class=\"dot\" cx=\"2.5\" cy=\"2.5\" r=\"1\"/></pattern>"
         "<pattern id=\"part-3\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect class=\"k3\" "
         "width=\"6\" height=\"6\"/><path class=\"line\" d=\"M-1 -1 7 7M-1 5 1 7M5 -1 7 1\"/></pattern>"
         "<pattern id=\"part-4\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><rect class=\"k4\" "
         "width=\"5\" height=\"5\"/><path class=\"line\" d=\"M2.5 0V5\"/></pattern>"
         "<pattern id=\"part-5\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><rect class=\"k5\" "
         "width=\"5\" height=\"5\"/><path class=\"line\" d=\"M0 2.5H5\"/></pattern>"
         "</defs></svg>\n";
}

std::string waterfall_svg(const StepWaterfall& waterfall, const std::string& id) {
  std::string rows;
  const std::string* thread = nullptr;
  int y = 0;
  for (const StepWaterfall::Row& row : waterfall.rows) {
    if (thread == nullptr || *thread != row.thread) {
      thread = &row.thread;
      rows += fmt::format("<text class=\"thread\" x=\"0\" y=\"{}\">{}</text>\n", y + 17, label_html(row.thread));
      y += kHeading;
    }
    rows += row_svg(row, waterfall.length_s, y);
    y += kRow;
  }
  std::string svg = svg_opening(id, "timeline", y + 22, "One step over time", waterfall_description(waterfall));
  for (const int percent : {0, 25, 50, 75, 100}) {
    svg += fmt::format("<line class=\"grid\" x1=\"{0}%\" x2=\"{0}%\" y1=\"0\" y2=\"{1}\"/>", percent, y);
  }
  svg += fmt::format(
      "<text class=\"scale\" x=\"0\" y=\"{0}\">0</text><text class=\"figure scale\" x=\"100%\" y=\"{0}\">{1}</text>\n",
      y + 16, time_text(waterfall.length_s));
  return svg + rows + "</svg>\n";
}

std::vector<std::span<const Frame>> threads_of(const FlameGraph& graph) {
  std::vector<std::span<const Frame>> threads;
  const std::span<const Frame> frames = graph.frames;
  for (std::size_t begin = 0; begin < frames.size();) {
    std::size_t end = begin + 1;
    while (end < frames.size() && frames[end].depth > 0) ++end;
    threads.push_back(frames.subspan(begin, end - begin));
    begin = end;
  }
  return threads;
}

std::string flame_svg(std::span<const Frame> frames, const std::string& id) {
  std::size_t deepest = 0;
  std::string drawn;
  for (const Frame& frame : frames) {
    deepest = std::max(deepest, frame.depth);
    drawn += frame_svg(frame, frames.front().total_ns);
  }
  return svg_opening(id, "flame", static_cast<int>(deepest + 1) * kFrame,
                     "Flame graph of " + label_html(frames.front().name), flame_description(frames)) +
         drawn + "</svg>\n";
}

std::string pairs_svg(const PairsChart& chart) {
  constexpr int kTop = 8, kPlot = 110;
  const double left = chart.left, wide = 98 - left;
  double low = std::min(chart.none, chart.low.value_or(chart.middle));
  double high = std::max(chart.none, chart.high.value_or(chart.middle));
  for (const std::vector<double>* values : {&chart.values, &chart.limits}) {
    for (const double value : *values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  const double room = std::max(chart.least_room, 0.06 * (high - low));
  low -= room;
  high += room;
  const auto down = [&](double value) { return kTop + kPlot * (1 - (value - low) / (high - low)); };
  std::string svg = svg_opening(chart.id, "pairs-chart", kTop + kPlot + 24, chart.title, chart.description);
  if (chart.low && chart.high) {
    svg += fmt::format("<rect class=\"band\" x=\"{}%\" y=\"{:.1f}\" width=\"{}%\" height=\"{:.1f}\"/>", left,
                       down(*chart.high), wide, std::max(1.0, down(*chart.low) - down(*chart.high)));
  }
  const auto level = [&](const char* css_class, double value, bool is_named) {
    svg += fmt::format("<line class=\"{0}\" x1=\"{1}%\" x2=\"{2}%\" y1=\"{3:.1f}\" y2=\"{3:.1f}\"/>", css_class, left,
                       left + wide, down(value));
    if (!is_named) return;
    svg += fmt::format("<text class=\"figure\" x=\"{}%\" y=\"{:.1f}\">{}</text>", left - 1.5, down(value) + 4,
                       chart.label(value));
  };
  constexpr double kText = 14;  // Pixels in height.
  for (const double limit : chart.limits) level("limit", limit, false);
  level("zero", chart.none, std::abs(down(chart.none) - down(chart.middle)) >= kText);
  level("middle", chart.middle, true);
  const auto count = static_cast<double>(chart.values.size());
  for (std::size_t i = 0; i < chart.values.size(); ++i) {
    if (!std::isfinite(chart.values[i])) continue;
    svg += fmt::format("<circle cx=\"{:.2f}%\" cy=\"{:.1f}\" r=\"3\"/>",
                       left + wide * (static_cast<double>(i) + 0.5) / count, down(chart.values[i]));
  }
  return svg + fmt::format(
                   "<text x=\"{}%\" y=\"{}\">first pair</text><text class=\"figure\" x=\"{}%\" y=\"{}\">last"
                   "</text></svg>\n",
                   left, kTop + kPlot + 18, left + wide, kTop + kPlot + 18);
}

std::string pairs_svg(const Report& report) {
  return pairs_svg({.id = "pairs",
                    .title = "The pairs that the speedup is from",
                    .description = fmt::format("{} pairs; {} is their speedup, {} to {} its 95 % interval.",
                                               report.speedup_pairs, fixed_text(report.speedup, 2),
                                               fixed_text(report.speedup_low, 2), fixed_text(report.speedup_high, 2)),
                    .values = thinned(report.speedup_ratios, kPairsMax),
                    .none = 1,
                    .middle = report.speedup,
                    .low = report.speedup_low,
                    .high = report.speedup_high,
                    .limits = {},
                    .least_room = 0.01,
                    .left = 12,
                    .label = [](double ratio) { return fixed_text(ratio, 2); }});
}

}  // namespace headrace::detail
