#include "insight/diagnose/detail/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/svg.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

struct Extent {
  double low = 0;
  double high = 1;
  double place(double value) const { return (value - low) / (high - low); }
};

Extent extent_of(const std::vector<double>& values) {
  Extent extent{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    extent.low = std::min(extent.low, value);
    extent.high = std::max(extent.high, value);
  }
  if (extent.high > extent.low) return extent;
  const double room = extent.low == 0 ? 1 : std::abs(extent.low) / 2;  // One value: in the middle.
  return {extent.low - room, extent.high + room};
}

// Enough digits to tell the values of an axis apart.
std::string axis_text(double value, const Extent& extent) {
  const double range = extent.high - extent.low;
  const int decimals = range >= 50 ? 0 : static_cast<int>(std::clamp(2 - std::floor(std::log10(range)), 0.0, 6.0));
  return fixed_text(value, std::floor(value) == value && range >= 1 ? 0 : decimals);
}

}  // namespace

std::vector<WaterfallRow> waterfall_rows(const Report& report) {
  std::vector<WaterfallRow> rows;
  double reached = report.baseline_samples_per_second;
  rows.push_back({"Before", "", 0, reached});
  for (const Report::Change& change : report.changes) {
    if (change.verdict != "kept") continue;
    const double next = change.gain ? reached * (1 + *change.gain) : reached;
    const bool is_known = change.gain && is_measured(next);
    rows.push_back({clean_text(change.name), is_known ? gain_text(*change.gain) : kUnavailable, reached,
                    is_known ? next : reached});
    reached = rows.back().to;
  }
  rows.push_back({"After, measured", "", 0, report.best_samples_per_second});
  return rows;
}

std::string waterfall_svg(const std::vector<WaterfallRow>& rows) {
  constexpr int kRow = 46, kBarTop = 20, kBar = 15;
  double top = 0;
  for (const WaterfallRow& row : rows) top = std::max({top, row.from, row.to});
  std::string description, bars;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const WaterfallRow& row = rows[i];
    const bool is_last = i + 1 == rows.size();
    const std::string figure = row.gain.empty() ? rate_text(row.to) : row.gain;
    const std::string label = label_html(row.label);
    description += fmt::format("{} {}{}", label, figure, is_last ? "." : "; ");
    const int y = static_cast<int>(i) * kRow;
    if (!is_last) {  // Leads the eye from where this bar ends to where the next one begins.
      bars += fmt::format("<line class=\"lead\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"{1}\" y2=\"{2}\"/>",
                          100 * (row.to / top), y + kBarTop + kBar, y + kRow + kBarTop);
    }
    bars += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}%\" y=\"{}\" width=\"{:.2f}%\" height=\"{}\" rx=\"2\"/>"
        "<text x=\"0\" y=\"{}\">{}</text><text class=\"figure\" x=\"100%\" y=\"{}\">{}</text>\n",
        !row.gain.empty() ? "rise"
        : is_last         ? "total best"
                          : "total",
        100 * (std::min(row.from, row.to) / top), y + kBarTop, 100 * (std::abs(row.to - row.from) / top), kBar, y + 14,
        label, y + 14, figure);
  }
  return svg_opening("waterfall", "waterfall", static_cast<int>(rows.size()) * kRow - 6,
                     "Samples per second, change by change", description) +
         "<defs><pattern id=\"rise-pattern\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
         "<rect class=\"ground\" width=\"6\" height=\"6\"/><path class=\"stroke\" d=\"M-1 7 7 -1M-1 1 1 -1M5 7 7 5\"/>"
         "</pattern></defs>\n" +
         bars + "</svg>";
}

std::string split_svg(const std::vector<LabelledSplit>& splits) {
  constexpr int kRow = 62, kBarTop = 22, kBar = 28;
  double longest = 0;
  for (const auto& [label, split] : splits)
    longest = std::max(longest, split->total_s / static_cast<double>(split->steps));
  std::string description, bars;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    const TimeSplit& split = *splits[i].split;
    const double steps = static_cast<double>(split.steps);
    const int y = static_cast<int>(i) * kRow;
    const std::string step_text = milliseconds_text(split.total_s / steps) + " a step";
    description += fmt::format("{}: {}", splits[i].label, step_text);
    bars += fmt::format("<text x=\"0\" y=\"{0}\">{1}</text><text class=\"figure\" x=\"100%\" y=\"{0}\">{2}</text>",
                        y + 14, splits[i].label, step_text);
    double x = 0;
    const auto parts = named_parts(split);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      const double width = longest > 0 ? 100 * parts[part].seconds / steps / longest : 0;
      const std::string share = percent_text(split.total_s > 0 ? parts[part].seconds / split.total_s : 0);
      description += fmt::format(", {} {}", parts[part].name, share);
      if (!(width > 0)) continue;
      bars += fmt::format(
          "<rect class=\"part part-{}\" x=\"{:.3f}%\" y=\"{}\" width=\"{:.3f}%\" height=\"{}\"><title>{}: {}, "
          "{}</title>"
          "</rect>",
          part, x, y + kBarTop, width, kBar, parts[part].name, milliseconds_text(parts[part].seconds / steps), share);
      if (width >= 22) {
        bars += fmt::format("<text class=\"inside\" x=\"{:.3f}%\" y=\"{}\">{}</text>", x + width / 2, y + kBarTop + 19,
                            parts[part].name);
      }
      x += width;
    }
    bars += '\n';
    description += ". ";
  }
  return svg_opening("split", "split", static_cast<int>(splits.size()) * kRow - 8, "Time of a step by its parts",
                     description) +
         bars + "</svg>";
}

std::string swatch_svg(std::size_t index) {
  return fmt::format(
      "<svg class=\"swatch\" width=\"18\" height=\"12\" aria-hidden=\"true\"><rect class=\"part part-{}\" width=\"18\" "
      "height=\"12\"/></svg>",
      index);
}

bool has_finite_point(const Report::Curve& curve) {
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    if (std::isfinite(curve.x[i]) && std::isfinite(curve.y[i])) return true;
  }
  return false;
}

std::string curve_svg(const Report::Curve& curve, const std::string& id) {
  constexpr int kTop = 14, kPlot = 150;                              // Pixels.
  constexpr double kLeft = 15, kRight = 97, kWide = kRight - kLeft;  // Percent.
  const Extent x = extent_of(curve.x), y = extent_of(curve.y);
  const auto across = [&](double value) { return kLeft + kWide * x.place(value); };
  const auto down = [&](double value) { return kTop + kPlot * (1 - y.place(value)); };

  std::string path, marks;
  std::size_t count = 0, last = 0;
  bool pen_is_down = false;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.x[i]) || !std::isfinite(curve.y[i])) {
      pen_is_down = false;
      continue;
    }
    path += fmt::format("{}{:.3f} {:.3f}", pen_is_down ? "L" : "M", 100 * x.place(curve.x[i]),
                        100 * (1 - y.place(curve.y[i])));
    if (curve.x.size() <= 40) {
      marks += fmt::format("<circle cx=\"{:.2f}%\" cy=\"{:.1f}\" r=\"3\"/>", across(curve.x[i]), down(curve.y[i]));
    }
    pen_is_down = true;
    ++count;
    last = i;
  }
  const std::string unit = curve.unit.empty() ? "" : " " + html_text(curve.unit);
  std::string svg =
      svg_opening(id, "curve", kTop + kPlot + 28, label_html(curve.name),
                  fmt::format("{} points from {} to {}; the last one is {}{}.", count, fixed_text(x.low, 4),
                              fixed_text(x.high, 4), fixed_text(curve.y[last], 4), unit));
  for (const double value : {y.low, (y.low + y.high) / 2, y.high}) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}%\" x2=\"{1}%\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text class=\"figure\" x=\"{3}%\" "
        "y=\"{4:.1f}\">{5}</text>",
        kLeft, kRight, down(value), kLeft - 2.5, down(value) + 4, axis_text(value, y));
  }
  svg += fmt::format("<text x=\"{}%\" y=\"{}\">{}</text><text class=\"figure\" x=\"{}%\" y=\"{}\">{}</text>", kLeft,
                     kTop + kPlot + 20, axis_text(x.low, x), kRight, kTop + kPlot + 20, axis_text(x.high, x));
  // Stretched to the plot's width; the stroke is not.
  svg += fmt::format(
      "<svg x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\" viewBox=\"0 0 100 100\" preserveAspectRatio=\"none\" "
      "overflow=\"visible\"><path class=\"trace\" d=\"{}\"/></svg>",
      kLeft, kTop, kWide, kPlot, path);
  return svg + marks + "</svg>";
}

namespace {

// The number of a class's colour: its own for those of every job, one more for all that a job counts beside them.
int colour_of(const MemoryShare& share) {
  constexpr std::array<const char*, 7> kOwn{"batches",   "activations", "parameters", "gradients",
                                            "optimizer", "other",       "cache"};
  const auto found = std::find(kOwn.begin(), kOwn.end(), share.name);
  return static_cast<int>(found - kOwn.begin());
}

// Where a plot stands in its chart: pixels down, percent across.
struct Plot {
  double left = 15, right = 97;
  int top = 14, height = 190;
  double across(double share) const { return left + (right - left) * share; }
  double down(double share) const { return top + height * (1 - share); }
};

// Of a class: the outline of its area in hundredths of the plot, and its name where there is room for it.
struct MemoryArea {
  std::string path, label;
};

MemoryArea memory_area(const MemoryShare& share, const std::vector<double>& across, std::vector<double>& floor,
                       double top, const Plot& plot) {
  constexpr double kRoom = 20;  // Pixels in height that a name needs.
  MemoryArea area;
  std::string back;
  double widest = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < across.size(); ++i) {
    const double height = static_cast<double>(share.bytes[i]) / top, ceiling = floor[i] + height;
    area.path += fmt::format("{}{:.2f} {:.2f}", i == 0 ? 'M' : 'L', 100 * across[i], 100 * (1 - ceiling));
    back.insert(0, fmt::format("L{:.2f} {:.2f}", 100 * across[i], 100 * (1 - floor[i])));
    // Not at the edges, where a name would be cut.
    if (across[i] > 0.15 && across[i] < 0.85 && height > widest) {
      widest = height;
      at = i;
    }
    floor[i] = ceiling;
  }
  area.path += back + 'Z';
  if (widest * plot.height >= kRoom) {
    area.label = fmt::format("<text class=\"inside\" x=\"{:.2f}%\" y=\"{:.1f}\">{}</text>", plot.across(across[at]),
                             plot.down(floor[at] - widest / 2) + 5, label_html(share.name));
  }
  return area;
}

}  // namespace

std::string memory_svg(const MemoryTimeline& whole) {
  constexpr std::size_t kColumns = 240;
  const Plot plot;
  const MemoryTimeline timeline = condensed(whole, kColumns);
  const std::vector<MemoryShare> shares = memory_shares(timeline);
  const double first = static_cast<double>(timeline.at_ns.front() - whole.at_ns.front()) * 1e-9;
  const double last = static_cast<double>(timeline.at_ns.back() - whole.at_ns.front()) * 1e-9;
  std::vector<double> across, floor(timeline.resident.size(), 0.0);
  double top = 1;
  for (std::size_t i = 0; i < timeline.resident.size(); ++i) {
    across.push_back(seconds_at(timeline, i) / std::max(last - first, 1e-9));
    double held = 0;
    for (const MemoryShare& share : shares) held += share.is_known ? static_cast<double>(share.bytes[i]) : 0;
    top = std::max(top, held);
  }
  std::string areas, labels, description;
  for (const MemoryShare& share : shares) {
    if (!share.is_known) continue;
    const MemoryArea area = memory_area(share, across, floor, top, plot);
    areas += fmt::format("<path class=\"area-{}\" d=\"{}\"/>", colour_of(share), area.path);
    labels += area.label;
    description += fmt::format("{} {} at the peak; ", label_html(share.name), bytes_text(share.at_peak));
  }
  std::string svg = svg_opening("memory", "memory", plot.top + plot.height + 28, "Memory over time, by class",
                                description + "in the order of the areas, from below.");
  for (const double share : {0.0, 0.5, 1.0}) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0}%\" x2=\"{1}%\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/><text class=\"figure\" x=\"{3}%\" "
        "y=\"{4:.1f}\">{5}</text>",
        plot.left, plot.right, plot.down(share), plot.left - 1.5, plot.down(share) + 4,
        share == 0 ? "0" : bytes_text(static_cast<std::int64_t>(share * top)));
  }
  svg += fmt::format("<text x=\"{}%\" y=\"{}\">{}</text><text class=\"figure\" x=\"{}%\" y=\"{}\">{}</text>", plot.left,
                     plot.top + plot.height + 20, seconds_text(first), plot.right, plot.top + plot.height + 20,
                     seconds_text(last));
  // Stretched to the plot's width; the strokes are not.
  svg += fmt::format(
      "<svg x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\" viewBox=\"0 0 100 100\" "
      "preserveAspectRatio=\"none\">{}</svg>",
      plot.left, plot.top, plot.right - plot.left, plot.height, areas);
  return svg + labels + "</svg>\n";
}

std::string memory_swatch_svg(const MemoryShare& share) {
  return fmt::format(
      "<svg class=\"swatch\" width=\"18\" height=\"12\" aria-hidden=\"true\"><rect class=\"area-{}\" width=\"18\" "
      "height=\"12\"/></svg>",
      colour_of(share));
}

GainRange gain_range(const std::vector<Report::Change>& changes) {
  GainRange range;
  for (const Report::Change& change : changes) {
    for (const std::optional<double>& value : {change.gain, change.gain_low, change.gain_high}) {
      if (!value || !std::isfinite(*value)) continue;
      range.low = std::min(range.low, *value);
      range.high = std::max(range.high, *value);
    }
  }
  const double room = 0.06 * (range.high - range.low);
  return {range.low - room, range.high + room};
}

std::string interval_svg(const Report::Change& change, const GainRange& range) {
  if (!change.gain || !std::isfinite(*change.gain)) return {};
  const auto across = [&](double value) { return 100 * (value - range.low) / (range.high - range.low); };
  std::string svg = fmt::format(
      "<svg class=\"interval\" width=\"100%\" height=\"{1}\" aria-hidden=\"true\"><line class=\"rail\" x1=\"0\" "
      "x2=\"100%\" y1=\"9\" y2=\"9\"/><line class=\"zero\" x1=\"{0:.2f}%\" x2=\"{0:.2f}%\" y1=\"1\" y2=\"17\"/>",
      across(0), change.pair_gains.empty() ? 18 : 26);
  for (const double gain : thinned(change.pair_gains, kChangePairsMax)) {
    if (!std::isfinite(gain)) continue;
    svg += fmt::format("<circle class=\"pair\" cx=\"{:.2f}%\" cy=\"22\" r=\"2\"/>",
                       std::clamp(across(gain), 0.0, 100.0));  // Single pairs scatter beyond all intervals.
  }
  if (change.gain_low && change.gain_high && std::isfinite(*change.gain_low) && std::isfinite(*change.gain_high)) {
    svg += fmt::format("<line class=\"whisker\" x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"9\" y2=\"9\"/>",
                       across(*change.gain_low), across(*change.gain_high));
  }
  return svg + fmt::format("<circle cx=\"{:.2f}%\" cy=\"9\" r=\"4\"/></svg>", across(*change.gain));
}

}  // namespace headrace::detail
