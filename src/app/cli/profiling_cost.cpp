#include "app/cli/profiling_cost.h"

#include <fmt/format.h>
#include <headrace/operator_category.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/base/clock.h"

namespace headrace {
namespace {

constexpr double kShareMax = 0.01;

bool is_operator(const TraceRecord::Name& name) {
  return name.category.rfind(operators::kCategory, 0) == 0;
}

// A gauge's begin is its end, and it costs one read.
std::vector<std::int64_t> spans_by(const TraceRecord& record, std::size_t count, std::uint32_t TraceEvent::*place) {
  std::vector<std::int64_t> spans(count);
  for (const TraceEvent& event : record.events) {
    if (event.end_ns > event.begin_ns) ++spans[event.*place];
  }
  return spans;
}

std::size_t largest(const std::vector<std::int64_t>& counts) {
  return static_cast<std::size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

std::string advice_of(const TraceRecord& record, double share) {
  const std::vector<std::int64_t> spans = spans_by(record, record.names.size(), &TraceEvent::name);
  const std::size_t name = largest(spans);
  const TraceRecord::Name& most = record.names[name];
  const std::string saving = fmt::format("would save {:.1f} % of the time", 90 * share);
  if (is_operator(most)) {
    return fmt::format(
        "Switch hr.profile off once enough is known, record fewer steps (hr.profile(every_steps=10), or schedule=: "
        "every tenth one alone {}), or leave out record_shapes and profile_memory.",
        saving);
  }
  return fmt::format(
      "Switch it off once enough is known, or choose what is recorded: every_steps=10 {}; or names=[...] without "
      "\"{}\", of which there are most ({}). hr.Trace, hr.watch and hr.profile take these words, and `headrace profile "
      "SCRIPT` as --every-steps and --names.",
      saving, most.text, spans[name]);
}

}  // namespace

double span_seconds() {
  constexpr int kReads = 4096, kRounds = 8;
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t begin = monotonic_ns();
    for (int i = 0; i < kReads; ++i) static_cast<void>(trace_moment());
    least = std::min(least, seconds_since(begin) / kReads);
  }
  return 2 * least;
}

std::optional<Finding> profiling_overhead(const TraceRecord& record, double span_s) {
  if (record.events.empty() || record.threads.empty() || record.duration_ns <= 0) return std::nullopt;
  const std::vector<std::int64_t> spans = spans_by(record, record.threads.size(), &TraceEvent::thread);
  const std::size_t thread = largest(spans);
  const double seconds = 1e-9 * static_cast<double>(record.duration_ns);
  const double share = static_cast<double>(spans[thread]) * span_s / seconds;
  if (!(share > kShareMax)) return std::nullopt;
  return Finding{"profiling_overhead",
                 fmt::format("the recording took at least {:.1f} % of the time of thread \"{}\": {} spans in {:.3g} s, "
                             "{:.0f} ns each here",
                             100 * share, record.threads[thread], spans[thread], seconds, 1e9 * span_s),
                 advice_of(record, share),
                 {}};
}

}  // namespace headrace
