#include "insight/measure/resource_figures.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace headrace {
namespace {

TEST(ResourceFigures, OfLoadingAreThoseOfTheBatchesInBetween) {
  const LoadingTotals before{
      .read_s = 1, .decode_s = 2, .augment_s = 3, .collate_s = 4, .batches = 10, .batch_s = {1, 1}};
  LoadingTotals after = before;
  after.read_s = 3;
  after.decode_s = 2.5;
  after.batches = 20;
  after.num_workers = 2;
  after.prefetch_batches = 4;
  after.batch_s = {1, 1, 0.2, 0.3};
  const auto loading = loading_between(before, after);
  ASSERT_TRUE(loading);
  EXPECT_DOUBLE_EQ(loading->read_s, 0.2);
  EXPECT_DOUBLE_EQ(loading->decode_s, 0.05);
  EXPECT_EQ(loading->collate_s, 0);
  EXPECT_EQ(loading->num_workers, 2);
  EXPECT_EQ(loading->prefetch_batches, 4);
  EXPECT_EQ(loading->batch_s, (std::vector<double>{0.2, 0.3}));
}

TEST(ResourceFigures, WithoutBatchesOrAReadingLoadingIsUnavailable) {
  EXPECT_FALSE(loading_between(std::nullopt, LoadingTotals{.batches = 1}));
  EXPECT_FALSE(loading_between(LoadingTotals{}, std::nullopt));
  EXPECT_FALSE(loading_between(LoadingTotals{.batches = 3}, LoadingTotals{.batches = 3}));
}

TEST(ResourceFigures, AMachineWithoutPeaksAndAStepWithoutACountSayWhy) {
  ResourceFigures figures;
  add_machine(figures, std::nullopt, {}, 10);
  EXPECT_FALSE(figures.python_in_compute_s);
  EXPECT_FALSE(figures.peak_flops_per_s);
  EXPECT_EQ(figures.why_no_peak, "the peak was not measured");
  MachinePeaks peaks;
  peaks.flops_per_s = 1e11;
  peaks.copy_bytes_per_s = 1e10;
  peaks.page_fault_s = 1e-6;
  StepWork work;
  work.why_no_flops = "the model is compiled";
  work.between_operators_s = 0.5;
  add_machine(figures, peaks, work, 10);
  EXPECT_EQ(figures.python_in_compute_s, 5);
  EXPECT_EQ(figures.peak_flops_per_s, 1e11);
  EXPECT_EQ(figures.peak_bytes_per_s, 1e10);
  EXPECT_EQ(figures.page_fault_s, 1e-6);
  EXPECT_EQ(figures.why_no_peak, "the model is compiled");
}

}  // namespace
}  // namespace headrace
