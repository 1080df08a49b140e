// For tests and benches: a source whose read waits as long as it is told to, in place of work.
#pragma once

#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/source.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {

// Small grey images whose bytes tell their index.
class WaitingSource final : public Source, KnownSamples {
 public:
  using Cost = std::function<std::chrono::nanoseconds(std::int64_t index, std::int64_t inside)>;

  // `cost` may be called by many threads at once; `inside`: threads in read(), this one included.
  WaitingSource(std::int64_t size, Cost cost, int side = 4) : size_(size), side_(side), cost_(std::move(cost)) {
    info_ = {.schema = Schema::image_and_labels(side, side, 1),
             .num_classes = 10,
             .fingerprint = static_cast<std::uint64_t>(size)};
  }

  std::int64_t size() const override { return size_; }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return fmt::format("waiting[{}]", index); }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override { return index % 10; }

  void read(std::int64_t index, Sample& sample) const override {
    const auto wait = cost_(index, inside_.fetch_add(1) + 1);
    if (wait.count() > 0) std::this_thread::sleep_for(wait);
    inside_.fetch_sub(1);
    std::vector<std::uint8_t>& buffer = sample.buffer(0);
    buffer.assign(static_cast<std::size_t>(side_ * side_), static_cast<std::uint8_t>(index * 31));
    sample.image().set_pixels(buffer, side_, side_, 1);
    sample.set_label(label(index));
  }

 private:
  const std::int64_t size_;
  const int side_;
  const Cost cost_;
  SourceInfo info_;
  mutable std::atomic<std::int64_t> inside_{0};
};

}  // namespace headrace
