#include "python/core/trace_scope.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/base/fail.h"

namespace headrace::python {

namespace {

const SpanName& part_named(const std::string& name) {
  for (const SpanName* known : {&step::kForward, &step::kBackward, &step::kOptimizer}) {
    if (name == known->text) return *known;
  }
  fail(ErrorCode::invalid_argument, "python: wanted forward, backward or optimizer as a step's part, found \"{}\"",
       name);
}

std::int64_t nanoseconds_of(const char* name, double seconds) {
  constexpr double kSecondsMax = 1e9;  // 31 years: they fit into an int64 of nanoseconds.
  if (!(seconds >= 0 && seconds <= kSecondsMax)) {
    fail(ErrorCode::invalid_argument, "trace: {} is {}, wanted 0 to {:g} seconds", name, seconds, kSecondsMax);
  }
  return static_cast<std::int64_t>(seconds * 1e9);
}

}  // namespace

TraceChoice choice_of(std::vector<std::string> names, std::int64_t every_steps, double from_s, double length_s) {
  return {.names = std::move(names),
          .every_steps = every_steps,
          .from_ns = nanoseconds_of("from_s", from_s),
          .length_ns = nanoseconds_of("length_s", length_s)};
}

void TraceScope::enter() {
  record_.reset();
  trace_.emplace(options_);
  sampler_.emplace();
}

void TraceScope::exit() {
  if (!trace_) fail(ErrorCode::invalid_argument, "python: this Trace is not recording");
  record_ = trace_->stop();
  trace_.reset();
  memory_ = sampler_->timeline();
  sampler_.reset();
}

const TraceRecord& TraceScope::record() const {
  if (!record_) fail(ErrorCode::invalid_argument, "python: a Trace can be looked at after its with block");
  return *record_;
}

const MemoryTimeline& TraceScope::memory() const {
  record();
  return memory_;
}

std::string TraceScope::state() const {
  if (record_) return fmt::format("of {} events", record_->events.size());
  return trace_ ? "recording" : "not begun";
}

SpanScope::SpanScope(const std::string& name) : names_(names_of(name)) {}

void SpanScope::enter() {
  if (span_) fail(ErrorCode::invalid_argument, "python: this span is open already; make one for each block");
  span_.emplace(names_.span);
}

void SpanScope::exit(bool raised) {
  span_.reset();
  if (raised) record_gauge(names_.raised, 1);
}

const SpanScope::Names& SpanScope::names_of(const std::string& name) {
  static std::mutex mutex;  // Guards `known`, which never shrinks: a program has few names.
  static auto& known = *new std::unordered_map<std::string, std::unique_ptr<Names>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Names>& entry = known[name];
  if (!entry) {
    entry = std::make_unique<Names>(Names{name, name + ": exception", {}, {}});
    entry->span = {entry->text.c_str(), "work"};
    entry->raised = {entry->mark.c_str(), "mark"};
  }
  return *entry;
}

StepPartScope::StepPartScope(const std::string& name) : name_(part_named(name)) {}

}  // namespace headrace::python
