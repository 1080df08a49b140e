
#include <headrace/time_split.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/fail.h"
#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/detail/steps.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

using detail::seconds;

enum Part { data_wait, transfer, forward, backward, optimizer, kParts };

struct Step {
  std::size_t thread;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::array<std::int64_t, kParts> part_ns{};
};

// What an event of the record is to a step: kParts nothing, else a Part.
std::vector<int> roles(const TraceRecord& record) {
  std::vector<int> result;
  result.reserve(record.names.size());
  const std::array<SpanName, kParts> names{step::kDataWait, step::kTransfer, step::kForward, step::kBackward,
                                           step::kOptimizer};
  for (const TraceRecord::Name& name : record.names) {
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const SpanName& known) { return detail::is_named(name, known); });
    result.push_back(static_cast<int>(found - names.begin()));
  }
  return result;
}

// Gives the parts of a thread to its steps, which come in order.
void add_parts(const std::vector<Step*>& steps, const std::vector<TraceEvent>& spans, const std::vector<int>& role) {
  auto current = steps.begin();
  std::int64_t covered_to = std::numeric_limits<std::int64_t>::min();  // Before this moment every part is counted.
  for (const TraceEvent& span : spans) {
    const int part = role[span.name];
    if (part == kParts) continue;
    while (current != steps.end() && (*current)->end_ns <= span.begin_ns) ++current;
    if (current == steps.end()) return;
    Step& step = **current;
    if (span.begin_ns < step.begin_ns || span.end_ns > step.end_ns || span.end_ns <= covered_to) continue;
    step.part_ns[static_cast<std::size_t>(part)] += span.end_ns - std::max(span.begin_ns, covered_to);
    covered_to = span.end_ns;
  }
}

nlohmann::ordered_json share(double part_s, double total_s) {
  return total_s > 0 ? nlohmann::ordered_json(part_s / total_s) : nlohmann::ordered_json(nullptr);
}

}  // namespace

TimeSplit split_time(const TraceRecord& record, std::int64_t skip) {
  const std::vector<std::vector<TraceEvent>> threads = detail::spans_by_thread(record);
  std::vector<Step> steps;
  for (const detail::WholeStep& step : detail::whole_steps(record, threads, skip)) {
    steps.push_back({step.thread, step.begin_ns, step.end_ns, {}});
  }
  const std::vector<int> role = roles(record);
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    std::vector<Step*> of_thread;
    for (Step& step : steps) {
      if (step.thread == thread) of_thread.push_back(&step);
    }
    add_parts(of_thread, threads[thread], role);
  }

  TimeSplit split;
  split.steps = static_cast<std::int64_t>(steps.size());
  std::array<std::int64_t, kParts> sum{};  // In nanoseconds, so that the parts and `other` add up to the total.
  std::int64_t total = 0;
  for (const Step& step : steps) {
    const auto& ns = step.part_ns;
    total += step.end_ns - step.begin_ns;
    for (std::size_t part = 0; part < kParts; ++part) sum[part] += ns[part];
    split.step_s.push_back(seconds(step.end_ns - step.begin_ns));
    split.end_ns.push_back(step.end_ns);
    split.parts.push_back({seconds(ns[data_wait]), seconds(ns[transfer]), seconds(ns[forward]), seconds(ns[backward]),
                           seconds(ns[optimizer])});
  }
  split.total_s = seconds(total);
  split.data_wait_s = seconds(sum[data_wait]);
  split.transfer_s = seconds(sum[transfer]);
  split.forward_s = seconds(sum[forward]);
  split.backward_s = seconds(sum[backward]);
  split.optimizer_s = seconds(sum[optimizer]);
  for (const std::int64_t part : sum) total -= part;
  split.other_s = seconds(total);
  return split;
}

TimeSplit sum_steps(std::vector<double> step_s, std::vector<TimeSplit::Parts> parts) {
  HEADRACE_CHECK(step_s.size() == parts.size(), "insight: {} steps have {} parts", step_s.size(), parts.size());
  TimeSplit split;
  split.steps = static_cast<std::int64_t>(step_s.size());
  for (std::size_t i = 0; i < step_s.size(); ++i) {
    split.total_s += step_s[i];
    split.data_wait_s += parts[i].data_wait_s;
    split.transfer_s += parts[i].transfer_s;
    split.forward_s += parts[i].forward_s;
    split.backward_s += parts[i].backward_s;
    split.optimizer_s += parts[i].optimizer_s;
  }
  split.other_s =
      split.total_s - split.data_wait_s - split.transfer_s - split.forward_s - split.backward_s - split.optimizer_s;
  split.step_s = std::move(step_s);
  split.parts = std::move(parts);
  return split;
}

void add_sums(TimeSplit& sums, const TimeSplit& more) {
  sums.steps += more.steps;
  for (const auto part : {&TimeSplit::total_s, &TimeSplit::data_wait_s, &TimeSplit::transfer_s, &TimeSplit::forward_s,
                          &TimeSplit::backward_s, &TimeSplit::optimizer_s, &TimeSplit::other_s}) {
    sums.*part += more.*part;
  }
}

nlohmann::ordered_json to_json(const TimeSplit& split) {
  return {{"steps", split.steps},
          {"total_s", split.total_s},
          {"data_wait_s", split.data_wait_s},
          {"transfer_s", split.transfer_s},
          {"forward_s", split.forward_s},
          {"backward_s", split.backward_s},
          {"optimizer_s", split.optimizer_s},
          {"other_s", split.other_s},
          {"share",
           {{"data_wait", share(split.data_wait_s, split.total_s)},
            {"transfer", share(split.transfer_s, split.total_s)},
            {"forward", share(split.forward_s, split.total_s)},
            {"backward", share(split.backward_s, split.total_s)},
            {"optimizer", share(split.optimizer_s, split.total_s)},
            {"other", share(split.other_s, split.total_s)}}},
          {"step_s", split.step_s}};
}

nlohmann::ordered_json metric_series(const TimeSplit& split, std::int64_t samples_per_step,
                                     const std::vector<std::int64_t>& memory_bytes) {
  if (samples_per_step <= 0 || split.parts.size() != split.step_s.size() ||
      (!memory_bytes.empty() && memory_bytes.size() != split.step_s.size())) {
    fail(ErrorCode::invalid_argument,
         "insight: metric series need samples per step (have {}) and, for each of {} steps, its parts (have {}) and "
         "memory (have {}, or none)",
         samples_per_step, split.step_s.size(), split.parts.size(), memory_bytes.size());
  }
  std::vector<double> speed, data_loading, forward, backward, optimizer;
  for (std::size_t i = 0; i < split.step_s.size(); ++i) {
    const TimeSplit::Parts& parts = split.parts[i];
    speed.push_back(static_cast<double>(samples_per_step) / split.step_s[i]);
    data_loading.push_back(parts.data_wait_s + parts.transfer_s);
    forward.push_back(parts.forward_s);
    backward.push_back(parts.backward_s);
    optimizer.push_back(parts.optimizer_s);
  }
  nlohmann::ordered_json memory = nullptr;
  if (!memory_bytes.empty()) {
    memory = nlohmann::ordered_json::array();
    for (const std::int64_t bytes : memory_bytes) memory.push_back(static_cast<double>(bytes) * 1e-9);
  }
  return {{"training_speed", {{"unit", "samples/s"}, {"values", speed}}},
          {"memory_usage", {{"unit", "GB"}, {"values", memory}}},
          {"data_loading_time", {{"unit", "s"}, {"values", data_loading}}},
          {"forward_pass_time", {{"unit", "s"}, {"values", forward}}},
          {"backward_pass_time", {{"unit", "s"}, {"values", backward}}},
          {"optimizer_time", {{"unit", "s"}, {"values", optimizer}}}};
}

}  // namespace headrace
