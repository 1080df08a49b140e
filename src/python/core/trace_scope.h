// Traces and spans as Python's context managers.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/memory/sampler.h"

namespace headrace::python {

// As Python gives a choice of what is recorded, times in seconds. Error{invalid_argument} names a time beyond 31 years
// or below 0; Trace checks the rest.
TraceChoice choice_of(std::vector<std::string> names, std::int64_t every_steps, double from_s, double length_s);

// `with Trace() as trace:` records until the block's end; then the record is there to look at.
class TraceScope {
 public:
  explicit TraceScope(TraceOptions options) : options_(std::move(options)) {}
  void enter();
  void exit();
  // Error{invalid_argument} before the block's end.
  const TraceRecord& record() const;
  // Over the block, by what accounts count. The same.
  const MemoryTimeline& memory() const;
  // "not begun", "recording", "of 120 events": for a person.
  std::string state() const;

 private:
  TraceOptions options_;
  std::optional<Trace> trace_;
  std::optional<TraceRecord> record_;
  std::optional<MemorySampler> sampler_;  // While it records.
  MemoryTimeline memory_;
};

// `with span("name"):` records the block's time; a block that an exception left is marked by a gauge of that moment.
class SpanScope {
 public:
  explicit SpanScope(const std::string& name);
  void enter();
  void exit(bool raised);

 private:
  // Of a name: they live until the process ends, because events keep their addresses.
  struct Names {
    std::string text, mark;
    SpanName span, raised;
  };
  static const Names& names_of(const std::string& name);

  const Names& names_;
  std::optional<Span> span_;
};

// `with StepPart("forward"):` records the block as that part of a step, which a trace's time split knows.
class StepPartScope {
 public:
  // Error{invalid_argument}: neither forward, backward nor optimizer.
  explicit StepPartScope(const std::string& name);
  void enter() { span_.emplace(name_); }
  void exit() { span_.reset(); }

 private:
  const SpanName& name_;
  std::optional<Span> span_;
};

}  // namespace headrace::python
