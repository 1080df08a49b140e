#include "insight/diagnose/detail/trace_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/loading_report.h"
#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/detail/trace_charts.h"
#include "insight/diagnose/detail/trace_report.h"

namespace headrace::detail {
namespace {

using Frame = FlameGraph::Frame;
using Row = StepWaterfall::Row;

void write_percentiles(TextPage& page, const Report::Traced& traced) {
  page.paragraph(percentiles_text(traced), 2);
  page.line(page.painted(fmt::format("  {:<11}{:>9}{:>9}{:>9}", "", "p50", "p95", "p99"), Ink::faint));
  for (const SpanStatistics& part : step_statistics(traced.split)) {
    page.line(fitted(fmt::format("  {:<11}{:>9}{:>9}{:>9}", part.name, time_text(part.p50_s), time_text(part.p95_s),
                                 time_text(part.p99_s)),
                     page.width()));
  }
}

// Where the row's bars lie in `width` columns: a column shows when anything ran in it.
std::string track_text(const Row& row, double length_s, int width) {
  std::vector<bool> runs(static_cast<std::size_t>(width), false);
  for (const StepWaterfall::Bar& bar : row.bars) {
    const auto from = static_cast<std::size_t>(bar.begin_s / length_s * width);
    const auto to = static_cast<std::size_t>(std::ceil(bar.end_s / length_s * width));
    for (std::size_t i = std::min(from, runs.size() - 1); i < std::min(std::max(to, from + 1), runs.size()); ++i) {
      runs[i] = true;
    }
  }
  std::string text;
  for (const bool run : runs) text += run ? "█" : "·";
  return text;
}

void write_waterfall(TextPage& page, const StepWaterfall& waterfall) {
  constexpr int kName = 18, kTime = 9, kRows = 14;
  page.paragraph(waterfall_text(waterfall), 2);
  const int width = page.width() - 2 - kName - kTime - 2;  // At least 9.
  int rows = 0;
  const std::string* thread = nullptr;
  for (const Row& row : waterfall.rows) {
    if (row.depth > 1 || ++rows > kRows) continue;
    if (!row.is_own_thread && (thread == nullptr || *thread != row.thread)) {
      thread = &row.thread;
      page.line("  " + page.painted(fitted(clean_text(row.thread), page.width() - 2), Ink::faint));
    }
    const std::string name = std::string(2 * row.depth, ' ') + clean_text(row.name);
    page.line(fitted(fmt::format("  {}{:>{}}  {}", padded(name, kName), time_text(row.total_s), kTime,
                                 track_text(row, waterfall.length_s, width)),
                     page.width()));
  }
}

void write_frames(TextPage& page, std::span<const Frame> frames) {
  constexpr double kShareMin = 0.02;
  constexpr std::size_t kDepthMax = 6;
  constexpr int kRows = 16, kShare = 8, kTime = 10;
  const double whole = static_cast<double>(frames.front().total_ns);
  const int name_width = page.width() - 2 - kShare - kTime;
  int rows = 0;
  for (const Frame& frame : frames) {
    const double share = static_cast<double>(frame.total_ns) / whole;
    if (share < kShareMin || frame.depth > kDepthMax || ++rows > kRows) continue;
    const std::string name = std::string(2 * frame.depth, ' ') + clean_text(frame.name);
    page.line(fitted(fmt::format("  {}{:>{}}{:>{}}", padded(name, name_width), percent_text(share), kShare,
                                 time_text(seconds(frame.total_ns)), kTime),
                     page.width()));
  }
}

}  // namespace

void write_traces(TextPage& page, const Report& report) {
  if (says_no_traces(report)) {
    page.heading("How long steps take");
    page.line(fmt::format("  {}", kUnavailable));
  }
  for (const Report::Traced& traced : report.traces) {
    const std::string of = report.traces.size() > 1 ? ": " + fitted(clean_text(traced.label), 12) : "";
    page.heading("How long steps take" + of);
    write_percentiles(page, traced);
    page.heading("One step over time" + of);
    write_waterfall(page, traced.waterfall);
    page.heading("Stacks by time" + of);
    const std::vector<std::span<const Frame>> threads = threads_of(traced.flame);
    if (!threads.empty()) write_frames(page, threads.front());
    if (const std::string lost = dropped_text(traced); !lost.empty()) page.paragraph(lost, 2, Ink::doubtful);
  }
}

}  // namespace headrace::detail
