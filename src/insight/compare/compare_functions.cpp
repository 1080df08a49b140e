#include <headrace/compare_functions.h>

#include <algorithm>
#include <cmath>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "insight/compare/compared_machine.h"
#include "insight/compare/detail/call_metric.h"
#include "insight/compare/run_pairs.h"

namespace headrace {
namespace {

constexpr double kSampleMin = 1e-4, kSampleMax = 60;
constexpr std::int64_t kWarmupMax = 1'000'000;
// A clock that goes on has moved in so many calls of an empty function.
constexpr std::int64_t kCallsOfNoTime = 1 << 20;
constexpr double kLongestSample = 100;  // Of the slower function, in sample_s.

void check(const ComparedFunction& old_function, const ComparedFunction& new_function,
           const CompareFunctionsOptions& options) {
  const auto refuse = [](const char* name, const char* wanted, auto found) {
    fail(ErrorCode::invalid_argument, "compare_functions: {}: wanted {}, found {}", name, wanted, found);
  };
  if (!old_function) refuse("old_function", "a function", "an empty one");
  if (!new_function) refuse("new_function", "a function", "an empty one");
  if (options.pairs < 1) refuse("pairs", "1 or more", options.pairs);
  if (!(options.budget_s > 0 && std::isfinite(options.budget_s))) {
    refuse("budget_s", "seconds above 0", options.budget_s);
  }
  if (!(options.sample_s >= kSampleMin && options.sample_s <= kSampleMax)) {
    refuse("sample_s", "0.0001 to 60 seconds", options.sample_s);
  }
  if (options.warmup_calls < 0 || options.warmup_calls > kWarmupMax) {
    refuse("warmup_calls", "0 to 1000000", options.warmup_calls);
  }
  if (!(options.tolerance > 0 && options.tolerance < 1)) {
    refuse("tolerance", "a share above 0 and below 1", options.tolerance);
  }
}

CompareClock system_clock() {
  return [begin_ns = monotonic_ns()] { return seconds_since(begin_ns); };
}

// Seconds that so many calls take.
double time_calls(const ComparedFunction& function, std::int64_t calls, const CompareClock& clock) {
  const double begin_s = clock();
  for (std::int64_t call = 0; call < calls; ++call) function();
  return clock() - begin_s;
}

[[noreturn]] void refuse_clock(std::int64_t calls, double seconds) {
  fail(ErrorCode::invalid_argument,
       "compare_functions: {} calls of a function took {} s by the clock; wanted a clock that goes on", calls, seconds);
}

// Seconds a call, of as many calls as take sample_s.
double find_call_s(const ComparedFunction& function, double sample_s, const CompareClock& clock) {
  for (std::int64_t calls = 1;; calls *= 2) {
    const double seconds = time_calls(function, calls, clock);
    if (seconds >= sample_s && std::isfinite(seconds)) return seconds / static_cast<double>(calls);
    if (!(seconds > 0) && calls >= kCallsOfNoTime) refuse_clock(calls, seconds);
  }
}

std::int64_t calls_of_sample(double old_call_s, double new_call_s, double sample_s) {
  const double enough = std::ceil(sample_s / std::min(old_call_s, new_call_s));
  const double most = std::floor(kLongestSample * sample_s / std::max(old_call_s, new_call_s));
  return static_cast<std::int64_t>(std::max(1.0, std::min(enough, most)));
}

// Seconds a call, of one sample.
double sample(const ComparedFunction& function, std::int64_t calls, const CompareClock& clock) {
  const double seconds = time_calls(function, calls, clock);
  if (!(seconds > 0 && std::isfinite(seconds))) refuse_clock(calls, seconds);
  return seconds / static_cast<double>(calls);
}

RunFigures figures_of(double call_s) {
  return {.metrics = {{kCallSeconds, call_s}}, .stage_s = {}, .outputs = {}, .seen_from_outside = {}, .machine = {}};
}

std::string limit_text(const CompareFunctionsOptions& options, const RunPairs& pairs) {
  if (pairs.is_settled()) return "";
  if (pairs.pairs() >= options.pairs) return fmt::format("not decided after all of its {} pairs", options.pairs);
  return fmt::format("not decided after {} pair{}, as budget_s ({:g} s) was used up", pairs.pairs(),
                     pairs.pairs() == 1 ? "" : "s", options.budget_s);
}

void tell(const RunPairs& pairs, FunctionComparison& comparison) {
  const MetricVerdict verdict = pairs.verdict().metrics.front();
  comparison.change = verdict.change;
  comparison.old_s = verdict.old_value.value();
  comparison.new_s = verdict.new_value.value();
  comparison.slowdown = verdict.interval.value();
  comparison.scatter = verdict.scatter;
  comparison.pairs_needed = verdict.pairs_needed;
  comparison.why_undecided = limit_text(comparison.options, pairs);
}

}  // namespace

FunctionComparison compare_functions(const ComparedFunction& old_function, const ComparedFunction& new_function,
                                     const CompareFunctionsOptions& options, CompareClock clock) {
  check(old_function, new_function, options);
  if (!clock) clock = system_clock();
  FunctionComparison comparison;
  comparison.options = options;
  if (options.seed == 0) comparison.options.seed = static_cast<std::uint64_t>(monotonic_ns());

  const double begin_s = clock();
  for (const ComparedFunction* function : {&old_function, &new_function})
    time_calls(*function, options.warmup_calls, clock);
  const double old_call_s = find_call_s(old_function, options.sample_s, clock);
  const double new_call_s = find_call_s(new_function, options.sample_s, clock);
  comparison.calls = calls_of_sample(old_call_s, new_call_s, options.sample_s);

  RunPairs pairs(call_choices(options.tolerance));
  do {
    FunctionPair pair;
    pair.old_first = old_runs_first(comparison.options.seed, pairs.pairs());
    if (pair.old_first) pair.old_s = sample(old_function, comparison.calls, clock);
    pair.new_s = sample(new_function, comparison.calls, clock);
    if (!pair.old_first) pair.old_s = sample(old_function, comparison.calls, clock);
    pairs.add(figures_of(pair.old_s), figures_of(pair.new_s));
    comparison.pairs.push_back(pair);
  } while (!pairs.is_settled() && pairs.pairs() < options.pairs && clock() - begin_s < options.budget_s);

  tell(pairs, comparison);
  comparison.machine = compared_machine();
  comparison.written = utc_text();
  return comparison;
}

}  // namespace headrace
