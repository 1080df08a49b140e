#include <headrace/step_waterfall.h>

#include <algorithm>
#include <map>
#include <utility>

#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/detail/steps.h"

namespace headrace {
namespace {

using detail::WholeStep;
using Row = StepWaterfall::Row;
using Bar = StepWaterfall::Bar;

std::size_t middle_step(const std::vector<WholeStep>& steps) {
  std::vector<std::size_t> order(steps.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
  std::nth_element(order.begin(), middle, order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(steps[a].end_ns - steps[a].begin_ns, a) < std::pair(steps[b].end_ns - steps[b].begin_ns, b);
  });
  return *middle;
}

// The rows of one thread. Its spans come in the order of their beginnings, outer ones first.
class ThreadRows {
 public:
  ThreadRows(const TraceRecord& record, const WholeStep& step, const WaterfallLimits& limits, std::size_t thread)
      : record_(record), step_(step), limits_(limits), thread_(thread) {}

  void add(const TraceEvent& span) {
    while (!open_.empty() && open_.back() <= span.begin_ns) open_.pop_back();
    const std::size_t depth = open_.size();
    const TraceRecord::Name& name = record_.names[span.name];
    // Steps enclose all that is theirs, and are no row.
    if (detail::is_named(name, step::kStep)) return;
    open_.push_back(span.end_ns);
    if (depth >= limits_.depth_max || span.end_ns <= step_.begin_ns || span.begin_ns >= step_.end_ns) return;
    const auto [found, is_new] = places_.try_emplace({depth, span.name}, rows_.size());
    if (is_new) rows_.push_back(new_row(name, depth));
    Row& row = rows_[found->second];
    const Bar bar{seconds(std::max(span.begin_ns, step_.begin_ns)), seconds(std::min(span.end_ns, step_.end_ns))};
    ++row.calls;
    row.total_s += bar.end_s - bar.begin_s;
    row.bars.push_back(bar);
  }
  std::vector<Row> take() { return std::move(rows_); }

 private:
  double seconds(std::int64_t ns) const { return detail::seconds(ns - step_.begin_ns); }
  Row new_row(const TraceRecord::Name& name, std::size_t depth) const {
    Row row;
    row.name = name.text;
    row.category = name.category;
    row.thread = record_.threads[thread_];
    row.is_own_thread = thread_ == step_.thread;
    row.depth = depth;
    return row;
  }

  const TraceRecord& record_;
  const WholeStep& step_;
  const WaterfallLimits& limits_;
  const std::size_t thread_;
  std::vector<std::int64_t> open_;  // Ends of what is open.
  std::map<std::pair<std::size_t, std::uint32_t>, std::size_t> places_;
  std::vector<Row> rows_;
};

// Keeps those with the most time, in their order.
void limit_rows(StepWaterfall& waterfall, std::size_t rows_max) {
  std::vector<Row>& rows = waterfall.rows;
  if (rows.size() <= rows_max) return;
  std::vector<std::size_t> order(rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rows[a].total_s > rows[b].total_s; });
  order.resize(rows_max);
  std::sort(order.begin(), order.end());
  std::vector<Row> kept;
  for (const std::size_t i : order) kept.push_back(std::move(rows[i]));
  waterfall.rows_left_out = static_cast<std::int64_t>(rows.size() - kept.size());
  rows = std::move(kept);
}

std::vector<Bar> joined(const std::vector<Bar>& bars, double gap_s) {
  std::vector<Bar> result;
  for (const Bar& bar : bars) {
    if (!result.empty() && bar.begin_s - result.back().end_s <= gap_s) {
      result.back().end_s = std::max(result.back().end_s, bar.end_s);
    } else {
      result.push_back(bar);
    }
  }
  return result;
}

// Joins bars over gaps that double until few enough are left: at the latest when a gap is as long as the step.
void limit_bars(StepWaterfall& waterfall, std::size_t bars_max) {
  constexpr double kGap = 0.001;  // Of a step: a pixel of a thousand.
  for (double share = kGap;; share *= 2) {
    std::size_t bars = 0;
    for (Row& row : waterfall.rows) {
      row.bars = joined(row.bars, share * waterfall.length_s);
      bars += row.bars.size();
    }
    if (bars <= bars_max || share >= 1) return;
  }
}

}  // namespace

StepWaterfall step_waterfall(const TraceRecord& record, std::int64_t skip, const WaterfallLimits& limits) {
  const std::vector<std::vector<TraceEvent>> threads = detail::spans_by_thread(record);
  const std::vector<WholeStep> steps = detail::whole_steps(record, threads, skip);
  const std::size_t place = middle_step(steps);
  const WholeStep& step = steps[place];
  StepWaterfall waterfall;
  waterfall.step = static_cast<std::int64_t>(place) + 1;
  waterfall.steps = static_cast<std::int64_t>(steps.size());
  waterfall.length_s = detail::seconds(step.end_ns - step.begin_ns);
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    ThreadRows rows(record, step, limits, thread);
    for (const TraceEvent& span : threads[thread]) rows.add(span);
    for (Row& row : rows.take()) waterfall.rows.push_back(std::move(row));
  }
  std::stable_sort(waterfall.rows.begin(), waterfall.rows.end(),
                   [](const Row& a, const Row& b) { return a.is_own_thread > b.is_own_thread; });
  limit_rows(waterfall, limits.rows_max);
  limit_bars(waterfall, limits.bars_max);
  return waterfall;
}

}  // namespace headrace
