#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/batch_size.h>
#include <headrace/loader.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "facade/regression.h"
#include "torch/device/accelerator.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kGb = 1'000'000'000;

std::int64_t size_of(const std::string& weights, bool literal = false) {
  return batch_size_for_memory({.batch_size = 512, .weights = weights}, 24 * kGb, {.literal = literal});
}

TEST(BatchSizeForMemory, IsThatOfTheTableAndNoMoreThanWasAskedFor) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> table{{80 * kGb, 64}, {24 * kGb, 64},   {24 * kGb - 1, 32},
                                                                 {16 * kGb, 32}, {12 * kGb, 24},   {8 * kGb, 16},
                                                                 {6 * kGb, 12},  {6 * kGb - 1, 8}, {2 * kGb, 8}};
  for (const auto& [bytes, size] : table) {
    EXPECT_EQ(batch_size_for_memory({.batch_size = 512}, bytes), size) << bytes;
    EXPECT_EQ(batch_size_for_memory({.batch_size = 5}, bytes), 5) << bytes;
    EXPECT_EQ(batch_size_for_memory({.batch_size = 512, .image_size = 641}, bytes),
              std::max<std::int64_t>(4, size / 2));
  }
  EXPECT_EQ(batch_size_for_memory({.batch_size = 512}, std::nullopt), 16);
  EXPECT_EQ(batch_size_for_memory({.batch_size = 512, .image_size = 1280, .weights = "yolov8x.pt"}, std::nullopt), 16);
  EXPECT_EQ(batch_size_for_memory({.batch_size = 512, .image_size = 1280, .weights = "yolov8x.pt"}, 2 * kGb), 4);
}

TEST(BatchSizeForMemory, HalvesForTheLetterOfALargeVariantAlone) {
  for (const char* large : {"yolov8x.pt", "YOLOv8L.pt", "yolo11l-seg.pt", "yolov5_l.pt", "yolov5x6.pt", "rtdetr-l.pt",
                            "runs/small/yolov8l.pt", "x"}) {
    EXPECT_EQ(size_of(large), 32) << large;
    EXPECT_EQ(size_of(large, /*literal=*/true), 32) << large;
  }
  for (const char* other : {"yolov8n.pt", "yolo11m-pose.pt", "large/xl/yolov8s.pt", "model.pt"}) {
    EXPECT_EQ(size_of(other), 64) << other;
    EXPECT_EQ(size_of(other, /*literal=*/true), 32) << other;
  }
  EXPECT_EQ(size_of(""), 64);
}

TEST(BatchSizeForMemory, AppliesTheMultiplierAndRoundsDownToNoLessThanOne) {
  const auto multiplied = [](std::int64_t batch_size, double multiplier) {
    return batch_size_for_memory({.batch_size = batch_size}, 24 * kGb, {.batch_size_multiplier = multiplier});
  };
  EXPECT_EQ(multiplied(64, 1.5), 96);
  EXPECT_EQ(multiplied(5, 1.2), 6);
  EXPECT_EQ(multiplied(10, 0.8), 8);
  EXPECT_EQ(multiplied(7, 0.8), 5);
  EXPECT_EQ(multiplied(1, 0.8), 1);
}

TEST(BatchSizeForMemory, RefusesWhatIsMissingOrNoNumber) {
  const auto refusal = [](const TrainingConfig& config, const MemoryRule& rule = {}) {
    return error_of(ErrorCode::invalid_argument, [&] { batch_size_for_memory(config, 24 * kGb, rule); });
  };
  EXPECT_EQ(refusal({}), "facade: config.batch_size: wanted a whole number of at least 1, found none");
  EXPECT_THAT(refusal({.batch_size = 0}), HasSubstr("found 0"));
  EXPECT_EQ(refusal({.batch_size = 8, .image_size = 0}),
            "facade: config.image_size: wanted a whole number of at least 1, found 0");
  EXPECT_THAT(refusal({.batch_size = 8}, {.batch_size_multiplier = -1}), HasSubstr("batch_size_multiplier"));
  EXPECT_THAT(refusal({.batch_size = 8}, {.batch_size_multiplier = std::nan("")}), HasSubstr("found nan"));
  EXPECT_THAT(refusal({.batch_size = 8}, {.batch_size_multiplier = 1e300}), HasSubstr("found 8 times 1e+300"));
}

TEST(BatchSizeForMemory, WithoutCudaIsAtMost16) {
  std::string why_not;
  const bool has_cuda = accelerator_of(at::Device(at::kCUDA, 0), why_not) != nullptr;
  const std::int64_t size = optimize_batch_size_for_memory({.batch_size = 64});
  EXPECT_EQ(size, has_cuda ? 64 : 16) << "of a GPU with 24 x 10^9 bytes at least";
  EXPECT_EQ(optimize_batch_size_for_memory({.batch_size = 2}), 2);
}

TEST(BatchOptimizer, TheExampleGivesASizeThatWasTriedAndLeavesTheModelAsItWas) {
  Regression regression;
  const std::vector<at::Tensor> before = regression.copies();
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  std::vector<std::int64_t> tried;
  const TensorBatch data = batches(1)[0];
  const Forward forward = [&](const TensorBatch& batch) -> Output {
    tried.push_back(batch.size());
    // Sample n is sample n - 16 again.
    if (batch.size() > 16) {
      EXPECT_TRUE(batch["inputs"][16].equal(data["inputs"][0]));
    }
    return {regression.loss(batch), {}};
  };
  BatchOptimizer optimizer(/*initial_batch_size=*/8, /*max_batch_size=*/64);
  EXPECT_FALSE(optimizer.plan().has_value());
  const std::int64_t size = optimizer.optimize_batch_size(regression.model, forward, data);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  ASSERT_FALSE(tried.empty());
  EXPECT_EQ(tried.front(), 8);
  EXPECT_LE(*std::max_element(tried.begin(), tried.end()), 64);
  ASSERT_TRUE(optimizer.plan().has_value());
  EXPECT_EQ(optimizer.plan()->batch_size, size);
  EXPECT_TRUE(std::find(tried.begin(), tried.end(), size) != tried.end()) << size;
  expect_same(regression.tensors(), before);
  for (const at::Tensor& parameter : regression.tensors()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(BatchOptimizer, WithATargetTakesTheSmallestSizeThatReachesIt) {
  Regression regression;
  BatchOptimizer optimizer(8, 64);
  // Any size reaches one sample in a thousand seconds.
  const std::int64_t size = optimizer.optimize_batch_size(regression.model, regression.forward(), batches(1)[0], 1e-3);
  std::int64_t smallest = 64;
  for (const BatchProbe& probe : optimizer.plan()->probes) smallest = std::min(smallest, probe.batch_size);
  EXPECT_EQ(size, smallest);
}

TEST(BatchOptimizer, TakesTheFirstBatchOfALoaderWhoseEpochsGoOn) {
  at::manual_seed(1);
  tiny::Cnn network;
  Loader loader(std::make_shared<tiny::Images>(12), tiny::batches_of(4), /*seed=*/1, /*training=*/true);
  {
    Epoch first = loader.next_epoch();
    while (first.next()) {
    }
  }
  BatchOptimizer optimizer(2, 8);
  const std::int64_t size = optimizer.optimize_batch_size(
      network.state(), [&](const TensorBatch& batch) { return network(batch); }, loader);
  EXPECT_GE(size, 1);
  EXPECT_LE(size, 8);
  EXPECT_EQ(loader.next_epoch_index(), 1);
}

TEST(BatchOptimizer, NamesWhatItCannotPlanWith) {
  Regression regression;
  const TensorBatch data = batches(1)[0];
  const auto refusal = [&](ErrorCode code, const TensorBatch& batch) {
    return error_of(code,
                    [&] { BatchOptimizer(8, 64).optimize_batch_size(regression.model, regression.forward(), batch); });
  };
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, {}), HasSubstr("wanted a batch of at least one sample"));
  TensorBatch ragged = data;
  ragged.add({.name = "boxes", .values = at::randn({16, 4}), .offsets = at::arange(17)});
  EXPECT_EQ(refusal(ErrorCode::unsupported, ragged),
            "facade: batch size: wanted fields of samples of one shape, found boxes");
  for (const at::Tensor& parameter : regression.tensors()) parameter.set_requires_grad(false);
  EXPECT_EQ(refusal(ErrorCode::invalid_argument, data),
            "facade: wanted a model with parameters that require gradients, found none");
}

}  // namespace
}  // namespace headrace::facade
