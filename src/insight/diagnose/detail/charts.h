// Inline SVG of a report. Positions along x are percentages and sizes of text are pixels, so that a chart fills any
// width and its text stays readable on a phone. Every chart carries <title> and <desc>; patterns and labels tell apart
// what colours tell apart. The texts of a report come in as they are and leave escaped.
#pragma once

#include <headrace/report.h>
#include <headrace/time_split.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "insight/diagnose/detail/memory_shares.h"

namespace headrace::detail {

// Samples per second: the baseline, each kept change on top of the ones before, and the best as measured. The first and
// the last row are measured; between them a row's gain is its change's own, and unavailable where it is not known.
struct WaterfallRow {
  std::string label;  // Clean, not escaped.
  std::string gain;   // Empty for the measured rows.
  double from = 0;
  double to = 0;
};
std::vector<WaterfallRow> waterfall_rows(const Report& report);  // Both rates must be measured.
std::string waterfall_svg(const std::vector<WaterfallRow>& rows);

// One stacked bar a split, all on one scale of seconds a step. Each split must have steps.
struct LabelledSplit {
  const char* label;
  const TimeSplit* split;
};
std::string split_svg(const std::vector<LabelledSplit>& splits);
// A sample of part `index`'s pattern, for the table beside the bars.
std::string swatch_svg(std::size_t index);

// Areas on top of each other, "other" the uppermost, over seconds since the first moment; the wide ones carry their
// names. Needs two moments.
std::string memory_svg(const MemoryTimeline& timeline);
// A sample of a class's colour, for the table below.
std::string memory_swatch_svg(const MemoryShare& share);

// y over x; where a value is not finite the line has a gap. Needs at least one finite point; `id` must be unique.
std::string curve_svg(const Report::Curve& curve, const std::string& id);
bool has_finite_point(const Report::Curve& curve);

// The range of gains that all interval marks of a report share; it holds 0.
struct GainRange {
  double low = -0.05;
  double high = 0.05;
};
GainRange gain_range(const std::vector<Report::Change>& changes);
// A dot with whiskers on a line with a mark at 0, and below it a dot for each pair. Hidden from screen readers: the
// text beside it says the same.
std::string interval_svg(const Report::Change& change, const GainRange& range);

}  // namespace headrace::detail
