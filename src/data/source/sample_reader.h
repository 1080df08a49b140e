// A source as who reads its samples sees it: what it is and can do is asked once, and ranges are fetched.
#pragma once

#include <headrace/options/data.h>
#include <headrace/source.h>
#include <headrace/trace.h>

#include <cstdint>
#include <string>

namespace headrace {

// A thread that reads from where the source has its samples, the page cache's answer included ("io" of
// headrace/wall_split.h). Value: the sample's index.
inline constexpr SpanName kReadStorage{"io_read", "wait"};

// As thread-safe as the source, which must outlive it.
class SampleReader {
 public:
  // `limits`: of what is fetched.
  explicit SampleReader(const Source& source, const SampleLimits& limits = {});

  const Source& source() const noexcept { return source_; }
  const SourceInfo& info() const noexcept { return info_; }
  const Capabilities& can() const noexcept { return can_; }
  std::int64_t size() const { return source_.size(); }
  std::string name(std::int64_t index) const { return source_.name(index); }

  // As KnownSamples tells, -1 and 0 where there are none.
  std::int64_t label(std::int64_t index) const { return can_.known != nullptr ? can_.known->label(index) : -1; }
  std::int64_t sample_bytes(std::int64_t index) const {
    return can_.known != nullptr ? can_.known->sample_bytes(index) : 0;
  }

  // As Source::read(), and what it gives as ranges comes as bytes. A span, but of a source in memory. Errors of ranges
  // beside the store's: invalid_argument, a negative one; unsupported, one above the limits.
  void read(std::int64_t index, Sample& sample) const {
    if (info_.in_memory) return read_fields(index, sample);
    Span span{kReadStorage, index};
    read_fields(index, sample);
  }

 private:
  void read_fields(std::int64_t index, Sample& sample) const {
    source_.read(index, sample);
    if (can_.store != nullptr) fetch_ranges(index, sample);
  }
  void fetch_ranges(std::int64_t index, Sample& sample) const;

  const Source& source_;
  const SourceInfo& info_;
  const Capabilities can_;
  const SampleLimits limits_;
};

}  // namespace headrace
