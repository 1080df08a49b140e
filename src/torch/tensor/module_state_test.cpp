#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/model_state.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::Pair;

struct Block : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
};

struct Net : torch::nn::Module {
  std::shared_ptr<Block> block = register_module("block", std::make_shared<Block>());
};

struct Tied : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(3, 4));
  at::Tensor again = register_parameter("again", linear->weight);
};

TEST(ModuleState, TiedWeightsStandThereOnce) {
  const auto net = std::make_shared<Tied>();
  ASSERT_EQ(net->named_parameters().size(), 3U);
  const ModelState state = module_state(net);
  ASSERT_EQ(state.parameters.size(), 2U);
  EXPECT_EQ(state.parameters[0].first, net->named_parameters()[0].key());
  EXPECT_FALSE(state.parameters[0].second.is_same(state.parameters[1].second));
}

TEST(ModuleState, SharesParametersAndBuffersUnderTheirNames) {
  torch::nn::Sequential net{torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)};
  const ModelState state = module_state(net.ptr());
  EXPECT_THAT(state.parameters, ElementsAre(Pair("0.weight", testing::_), Pair("0.bias", testing::_),
                                            Pair("1.weight", testing::_), Pair("1.bias", testing::_)));
  EXPECT_THAT(state.buffers, ElementsAre(Pair("1.running_mean", testing::_), Pair("1.running_var", testing::_),
                                         Pair("1.num_batches_tracked", testing::_)));
  EXPECT_TRUE(state.parameters[0].second.is_same(net->named_parameters()["0.weight"]));
}

TEST(ModuleState, EvaluationLeavesAFrozenSubmoduleFrozen) {
  const auto net = std::make_shared<Net>();
  net->block->norm->eval();
  const ModelState state = module_state(net);
  state.set_training(false);
  EXPECT_FALSE(net->is_training());
  EXPECT_FALSE(net->block->linear->is_training());
  state.set_training(true);
  EXPECT_TRUE(net->is_training());
  EXPECT_TRUE(net->block->linear->is_training());
  EXPECT_FALSE(net->block->norm->is_training());
}

TEST(ModuleState, RefusesAModuleWithoutParameters) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { module_state(nullptr); }), testing::HasSubstr("found none"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { module_state(torch::nn::ReLU().ptr()); }),
              testing::HasSubstr("has no parameters"));
}

}  // namespace
}  // namespace headrace
