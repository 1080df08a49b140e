// The times of a loader's stages, by a clock that each reading moves on.
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/options/transforms.h"
#include "data/loader/detail/chunk.h"
#include "data/loader/detail/loader_counters.h"
#include "data/loader/detail/slot.h"
#include "data/loader/testing.h"
#include "data/transform/plan.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kSamples = 36;

// A chunk of one image reads the clock when it begins, when it has read, before and after it decodes, and when the
// image lies in the batch.
std::int64_t stepping_clock() noexcept {
  static constexpr std::array<std::int64_t, 5> kSteps{0, 1 * kMs, 0, 5 * kMs, 2 * kMs};
  static std::int64_t now = 0;
  static std::size_t readings = 0;
  return now += kSteps[readings++ % kSteps.size()];
}

TEST(StageTimes, OfOneFiveAndTwoMillisecondsAreTold) {
  const TinyImages images{{.classes = 3, .count = kSamples / 3}};
  const std::shared_ptr<const Source> source = open_source(images.uri(), Split::train);
  ASSERT_EQ(source->size(), kSamples);
  DataOptions options = options_of(1, 0);
  options.transform.size = 24;
  const transform::Plan plan{transform::operations_of(transforms_of(options.transform, /*training=*/true, {})),
                             source->info().schema, PixelLayout::nchw};
  const detail::Order order{*source, options, 1, true};
  detail::EntropyIndexCache index_cache{*source, IndexUse::none};
  const detail::BatchLayout layout{detail::SampleFields{source->info().schema},
                                   detail::ImagePlace{{3, 24, 24}, PixelType::f32, PixelLayout::nchw}, 1};
  const SampleReader reader{*source};
  const detail::Pass pass{{reader.can().rows, plan.first(), options, 1, 0, &index_cache, stepping_clock},
                          reader,
                          OnCorrupt::fail,
                          detail::EpochOrder{order, 0},
                          detail::BatchSampler{order.positions(), options, LastBatch::keep, 0},
                          layout,
                          plan,
                          nullptr};
  const auto slots = std::make_shared<detail::SlotPool>(layout, 1, std::int64_t{1} << 24);
  detail::Workspace workspace{layout.fields.schema.size()};
  detail::LoaderCounters counters;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    auto slot = slots->take(0, i, 1);
    const detail::ChunkReport report = load_chunk(pass, {*slot, i, 0, 1}, workspace, nullptr);
    ASSERT_EQ(report.error, nullptr);
    counters.add_chunk(report);
    slots->put_back(std::move(slot));
  }
  LoaderStatistics statistics = counters.statistics();
  statistics.consumer_busy_ns = kSamples * kMs / 2;  // The consumer starves.
  statistics.wait_for_batch_ns = statistics.busy_ns - statistics.consumer_busy_ns;
  const auto stages = statistics.stages();
  const std::array<std::int64_t, 3> injected{1 * kMs, 5 * kMs, 2 * kMs};
  for (std::size_t i = 0; i < injected.size(); ++i) {
    EXPECT_EQ(stages[i].records, kSamples) << stages[i].name;
    EXPECT_EQ(stages[i].busy_ns, kSamples * injected[i]) << stages[i].name;
    EXPECT_EQ(stages[i].limits, injected[i] == 5 * kMs) << stages[i].name;
  }
}

}  // namespace
}  // namespace headrace
