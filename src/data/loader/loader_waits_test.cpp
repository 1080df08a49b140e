// What threads of a loader wait for, planted and told apart by a trace.
#include <gtest/gtest.h>
#include <headrace/loader.h>
#include <headrace/trace.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "data/loader/testing.h"

namespace headrace {
namespace {

constexpr std::int64_t kSamples = 12;
constexpr std::chrono::milliseconds kDelay{2};

// Reading a sample takes kDelay, as of a slow disk.
class SlowSource final : public Source {
 public:
  explicit SlowSource(bool in_memory)
      : info_{.schema = Schema::image_and_labels(2, 2, 1), .num_classes = 1, .in_memory = in_memory} {}
  std::int64_t size() const override { return kSamples; }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return std::to_string(index); }
  void read(std::int64_t /*index*/, Sample& sample) const override {
    std::this_thread::sleep_for(kDelay);
    sample.image().set_pixels(pixels_, 2, 2, 1);
    sample.set_label(0);
  }

 private:
  const SourceInfo info_;
  const std::vector<std::uint8_t> pixels_ = std::vector<std::uint8_t>(4);
};

// Spans of one name: how many, and all of them together.
struct Spans {
  std::int64_t count = 0;
  std::chrono::nanoseconds length{};
};

Spans spans_named(const TraceRecord& record, const std::string& text) {
  Spans found;
  for (const TraceEvent& event : record.events) {
    const TraceRecord::Name& name = record.names[event.name];
    if (name.text != text || event.end_ns == event.begin_ns) continue;
    EXPECT_EQ(name.category, "wait");
    ++found.count;
    found.length += std::chrono::nanoseconds(event.end_ns - event.begin_ns);
  }
  return found;
}

TraceRecord epoch_of(bool in_memory) {
  Loader loader{std::make_shared<SlowSource>(in_memory), options_of(4, 1), 1, true};
  Trace trace;
  EXPECT_EQ(order(loader.epoch(0)).size(), static_cast<std::size_t>(kSamples));
  return trace.stop();
}

TEST(LoaderWaits, EachSlowReadIsASpanAsLongAsItsDelay) {
  const Spans reads = spans_named(epoch_of(false), "io_read");
  EXPECT_EQ(reads.count, kSamples);
  EXPECT_GE(reads.length, kSamples * kDelay);
}

TEST(LoaderWaits, ASourceInMemoryHasNoReads) {
  EXPECT_EQ(spans_named(epoch_of(true), "io_read").count, 0);
}

}  // namespace
}  // namespace headrace
