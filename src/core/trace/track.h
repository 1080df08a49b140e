// A line of its own in a trace, for what is no thread: the work of a device.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <string>

namespace headrace {

// Listed among TraceRecord::threads by its name while it has spans. Not thread-safe; memory is kept until exit.
class TraceTrack {
 public:
  explicit TraceTrack(const std::string& name);
  ~TraceTrack();
  TraceTrack(const TraceTrack&) = delete;
  TraceTrack& operator=(const TraceTrack&) = delete;

  // Recorded only while a Trace records, and dropped where `begin` is before its start.
  void record(const SpanName& name, TraceMoment begin, TraceMoment end, std::int64_t value = 0) noexcept;

 private:
  detail::ThreadCells* const cells_;
};

}  // namespace headrace
