// What a record of steps holds of the figures that a verdict over resources needs.
#include <headrace/operator_category.h>
#include <headrace/resource_verdict.h>
#include <headrace/wall_split.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/detail/steps.h"

namespace headrace {
namespace {

using detail::seconds;
using detail::WholeStep;

struct Stretch {
  std::int64_t begin_ns, end_ns;
};

// In order, none of them touching the next one.
std::vector<Stretch> united(std::vector<Stretch> stretches) {
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Stretch> found;
  for (const Stretch& one : stretches) {
    if (found.empty() || one.begin_ns > found.back().end_ns) {
      found.push_back(one);
    } else {
      found.back().end_ns = std::max(found.back().end_ns, one.end_ns);
    }
  }
  return found;
}

// Nanoseconds in both; each is in order and touches none of its own.
std::int64_t overlap_ns(const std::vector<Stretch>& a, const std::vector<Stretch>& b) {
  std::int64_t ns = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    ns += std::max<std::int64_t>(0, std::min(a[i].end_ns, b[j].end_ns) - std::max(a[i].begin_ns, b[j].begin_ns));
    a[i].end_ns < b[j].end_ns ? ++i : ++j;
  }
  return ns;
}

std::int64_t length_ns(const std::vector<Stretch>& stretches) {
  std::int64_t ns = 0;
  for (const Stretch& one : stretches) ns += one.end_ns - one.begin_ns;
  return ns;
}

class Evidence {
 public:
  Evidence(const TraceRecord& record, std::int64_t skip)
      : record_(record),
        threads_(detail::spans_by_thread(record)),
        steps_(detail::whole_steps(record, threads_, skip)) {}

  ResourceFigures figures() const {
    ResourceFigures found;
    found.python_in_compute_s = between_operators();
    found.thread_delay_s = without_a_core();
    found.loading = stages();
    found.why_no_peak = "a trace does not tell how much its operators compute";
    return found;
  }

 private:
  // Stages of loading by the names that their spans have: those of LoadingStages, and headrace's own for "augment".
  static constexpr std::array<std::pair<std::string_view, double LoadingStages::*>, 5> kStages{
      {{"read", &LoadingStages::read_s},
       {"decode", &LoadingStages::decode_s},
       {"augment", &LoadingStages::augment_s},
       {"transform", &LoadingStages::augment_s},
       {"collate", &LoadingStages::collate_s}}};

  bool is_operator(const TraceEvent& span) const {
    const TraceRecord::Name& name = record_.names[span.name];
    return name.category.starts_with(operators::kCategory) && name.text.find("::") != std::string::npos;
  }

  // Spans that `wanted` takes and that lie within a step, of the step's thread or of any.
  template <class Wanted>
  std::vector<Stretch> in_steps(bool of_any_thread, Wanted&& wanted) const {
    std::vector<Stretch> found;
    for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
      auto step = steps_.begin();
      for (const TraceEvent& span : threads_[thread]) {
        if (!wanted(span)) continue;
        while (step != steps_.end() && step->end_ns <= span.begin_ns) ++step;
        if (step == steps_.end()) break;
        const bool is_inside = span.begin_ns >= step->begin_ns && span.end_ns <= step->end_ns;
        if (is_inside && (of_any_thread || step->thread == thread)) found.push_back({span.begin_ns, span.end_ns});
      }
    }
    return united(std::move(found));
  }

  // Of forward and backward, what no operator covers. A part in which there is none tells nothing.
  std::optional<double> between_operators() const {
    const std::vector<Stretch> operations = in_steps(true, [&](const TraceEvent& span) { return is_operator(span); });
    std::optional<double> total;
    for (const SpanName* part : {&step::kForward, &step::kBackward}) {
      const std::vector<Stretch> compute =
          in_steps(false, [&](const TraceEvent& span) { return detail::is_named(record_.names[span.name], *part); });
      const std::int64_t covered_ns = overlap_ns(compute, operations);
      if (covered_ns > 0) total = total.value_or(0) + seconds(length_ns(compute) - covered_ns);
    }
    return total;
  }

  // As the step's thread was told at its end, which is behind the step's.
  std::optional<double> without_a_core() const {
    std::optional<double> total;
    for (const TraceEvent& event : record_.events) {
      if (event.begin_ns < steps_.front().end_ns) continue;
      if (!detail::is_named(record_.names[event.name], loop::kCpuTaken) || event.value < 0) continue;
      total = total.value_or(0) + seconds(event.value);
    }
    return total;
  }

  // Of a batch, where each step takes one.
  std::optional<LoadingStages> stages() const {
    std::vector<double LoadingStages::*> stage_of(record_.names.size(), nullptr);
    for (std::size_t i = 0; i < record_.names.size(); ++i) {
      if (record_.names[i].category != "work") continue;
      for (const auto& [name, stage] : kStages) {
        if (record_.names[i].text == name) stage_of[i] = stage;
      }
    }
    LoadingStages found;
    std::set<std::size_t> workers;
    for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
      const bool trains =
          std::any_of(steps_.begin(), steps_.end(), [&](const WholeStep& step) { return step.thread == thread; });
      if (add_stages(thread, stage_of, found) && !trains) workers.insert(thread);
    }
    if (!(found.total_s() > 0)) return std::nullopt;
    found.num_workers = static_cast<int>(workers.size());
    return found;
  }

  // What a stage spends within another one is the inner one's alone.
  bool add_stages(std::size_t thread, const std::vector<double LoadingStages::*>& stage_of,
                  LoadingStages& found) const {
    std::vector<TraceEvent> around;
    bool any = false;
    for (const TraceEvent& span : threads_[thread]) {
      const auto stage = stage_of[span.name];
      if (stage == nullptr || span.begin_ns < steps_.front().begin_ns || span.end_ns > steps_.back().end_ns) continue;
      while (!around.empty() && around.back().end_ns <= span.begin_ns) around.pop_back();
      const double batch_s = seconds(span.end_ns - span.begin_ns) / static_cast<double>(steps_.size());
      found.*stage += batch_s;
      if (!around.empty() && span.end_ns <= around.back().end_ns) found.*stage_of[around.back().name] -= batch_s;
      around.push_back(span);
      any = true;
    }
    return any;
  }

  const TraceRecord& record_;
  const std::vector<std::vector<TraceEvent>> threads_;
  const std::vector<WholeStep> steps_;  // At least one.
};

}  // namespace

ResourceFigures figures_in(const TraceRecord& record, std::int64_t skip) {
  return Evidence{record, skip}.figures();
}

}  // namespace headrace
