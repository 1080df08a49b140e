#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/model_optimizer.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using testing::HasSubstr;

const Applied& row(const std::vector<Applied>& rows, const std::string& key) {
  for (const Applied& each : rows) {
    if (each.key == key) return each;
  }
  throw std::out_of_range("no row " + key);
}

TEST(ModelOptimizer, LaysImagesWeightsOutAndSaysOfTheRestWhyItIsNotApplied) {
  at::manual_seed(1);
  const tiny::Cnn network;
  std::vector<at::Tensor> values;
  for (const auto& [name, parameter] : network.state().parameters) values.push_back(parameter.detach().clone());
  ModelOptimizer optimizer{PerformanceConfig(OptimizationLevel::ultra)};
  EXPECT_THAT(row(optimizer.report(), "enable_memory_format_optimization").reason, HasSubstr("was not called"));

  const ModelState model = optimizer.optimize_model(network.state());
  EXPECT_TRUE(model.parameters[2].second.is_contiguous(at::MemoryFormat::ChannelsLast));
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(model.parameters[i].second.equal(values[i])) << i;
    EXPECT_TRUE(model.parameters[i].second.is_same(network.state().parameters[i].second)) << i;
  }
  EXPECT_FALSE(optimizer.compile_enabled());
  const std::vector<Applied> rows = optimizer.report();
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(row(rows, "enable_memory_format_optimization").applied, "true");
  EXPECT_EQ(row(rows, "enable_memory_format_optimization").reason, "");
  for (const char* key : {"enable_compile", "enable_gradient_checkpointing", "enable_flash_attention"}) {
    EXPECT_EQ(row(rows, key).requested, "true") << key;
    EXPECT_EQ(row(rows, key).applied, "none") << key;
    EXPECT_NE(row(rows, key).reason, "") << key;
  }
}

TEST(ModelOptimizer, OfTheLevelBasicLeavesTheModelAsItIs) {
  at::manual_seed(1);
  const tiny::Cnn network;
  ModelOptimizer optimizer{PerformanceConfig(OptimizationLevel::basic)};
  const ModelState model = optimizer.optimize_model(network.state());
  EXPECT_TRUE(model.parameters[2].second.is_contiguous());
  for (const Applied& each : optimizer.report()) {
    EXPECT_EQ(each.requested, "false") << each.key;
    EXPECT_EQ(each.applied, "false") << each.key;
    EXPECT_EQ(each.reason, "") << each.key;
  }
}

TEST(ModelOptimizer, SaysOfALayoutThatItDoesNotMakeWhyNot) {
  const auto reason_of = [](const PerformanceSettings& settings, const ModelState& model) {
    ModelOptimizer optimizer{PerformanceConfig(settings)};
    optimizer.optimize_model(model);
    const Applied found = row(optimizer.report(), "enable_memory_format_optimization");
    EXPECT_EQ(found.applied, found.reason.empty() ? "true" : "none");
    return found.reason;
  };
  at::manual_seed(1);
  const tiny::Cnn network;
  EXPECT_THAT(reason_of({.memory_format = MemoryFormat::channels_last_3d}, network.state()), HasSubstr("4 dimensions"));
  EXPECT_EQ(reason_of({.memory_format = MemoryFormat::preserve}, network.state()), "");
  ModelState flat;
  flat.parameters.emplace_back("weight", at::ones({3, 2}));
  EXPECT_THAT(reason_of({}, flat), HasSubstr("found none"));
}

TEST(ModelOptimizer, OfATrainerLaysItsStateAndItsImagesOutToo) {
  tiny::Training training;
  ModelOptimizer optimizer{PerformanceConfig(OptimizationLevel::advanced)};
  optimizer.optimize_model(*training.trainer);
  for (const auto& [name, tensor] : training.trainer->optimizer().state()) {
    if (tensor.dim() == 4) {
      EXPECT_TRUE(tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) << name;
    }
  }
  EXPECT_EQ(row(optimizer.report(), "enable_memory_format_optimization").applied, "true");
}

}  // namespace
}  // namespace headrace::facade
