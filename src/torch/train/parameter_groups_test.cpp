#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/parameter_groups.h>
#include <headrace/trainer.h>

#include <cstdint>

#include "core/base/error_of.h"
#include "torch/train/equal_tensors.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

// Of a small ResNet's names, with as many dimensions as there.
Named parameters() {
  using Shape = std::vector<std::int64_t>;
  const std::vector<std::pair<std::string, Shape>> shapes{
      {"conv1.weight", {2, 1, 3, 3}},
      {"bn1.weight", {2}},
      {"bn1.bias", {2}},
      {"layer1.0.conv1.weight", {2, 2, 3, 3}},
      {"layer1.0.bn1.weight", {2}},
      {"layer10.0.conv1.weight", {2, 2, 3, 3}},
      {"fc.weight", {4, 2}},
      {"fc.bias", {4}},
      {"scale", {}},
  };
  Named result;
  for (const auto& [name, shape] : shapes) result.emplace_back(name, at::ones(shape).requires_grad_());
  return result;
}

OptimizerOptions with(std::vector<OptimizerGroupOptions> groups, double decay_mult_1d = 1) {
  OptimizerOptions options;
  options.lr = 0.5;
  options.weight_decay = 0.25;
  options.decay_mult_1d = decay_mult_1d;
  options.group = std::move(groups);
  return options;
}

std::vector<std::string> names_in(const ParameterGroup& group) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : group.parameters) names.push_back(name);
  return names;
}

// What a group of this pattern alone has.
std::vector<std::string> named_by(const std::string& pattern) {
  return names_in(parameter_groups(parameters(), with({{.params = {pattern}}})).back());
}

std::string refusal(std::vector<OptimizerGroupOptions> groups) {
  return error_of(ErrorCode::invalid_argument, [&] { parameter_groups(parameters(), with(std::move(groups))); });
}

TEST(ParameterGroups, WithoutGroupsAllParametersAreOneGroupAsTheOptimizerIsWritten) {
  const std::vector<ParameterGroup> groups = parameter_groups(parameters(), with({}));
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].parameters.size(), parameters().size());
  EXPECT_EQ(groups[0].options.lr, 0.5);
  EXPECT_EQ(groups[0].lr_mult, 1);
  EXPECT_EQ(groups[0].options.weight_decay, 0.25);
}

TEST(ParameterGroups, APatternIsAParameterOrAModuleWithStarsForAnyCharacters) {
  EXPECT_THAT(named_by("fc.bias"), ElementsAre("fc.bias"));
  EXPECT_THAT(named_by("fc"), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(named_by("layer1"), ElementsAre("layer1.0.conv1.weight", "layer1.0.bn1.weight"));
  EXPECT_THAT(named_by("layer1.0.bn1"), ElementsAre("layer1.0.bn1.weight"));
  EXPECT_THAT(named_by("layer*"),
              ElementsAre("layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer10.0.conv1.weight"));
  EXPECT_THAT(named_by("*.bn1"), ElementsAre("layer1.0.bn1.weight"));  // A module, wherever it is in another one.
  EXPECT_THAT(named_by("*bn1.weight"), ElementsAre("bn1.weight", "layer1.0.bn1.weight"));
  EXPECT_THAT(named_by("l*1*conv*t"), ElementsAre("layer1.0.conv1.weight", "layer10.0.conv1.weight"));
  EXPECT_THAT(named_by("fc**"), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_EQ(named_by("*").size(), parameters().size());
}

TEST(ParameterGroups, ParametersInNoGroupComeFirstAndTheFirstGroupThatNamesOneHasIt) {
  const std::vector<ParameterGroup> groups = parameter_groups(
      parameters(), with({{.params = {"bn1", "layer1"}, .lr_mult = 0.5, .decay_mult = 2}, {.params = {"*bias"}}}));
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_THAT(names_in(groups[0]), ElementsAre("conv1.weight", "layer10.0.conv1.weight", "fc.weight", "scale"));
  EXPECT_THAT(names_in(groups[1]),
              ElementsAre("bn1.weight", "bn1.bias", "layer1.0.conv1.weight", "layer1.0.bn1.weight"));
  EXPECT_THAT(names_in(groups[2]), ElementsAre("fc.bias"));
  const std::vector<std::pair<double, double>> wanted{{1, 0.25}, {0.5, 0.5}, {1, 0.25}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i].options.lr, 0.5) << i;
    EXPECT_EQ(groups[i].lr_mult, wanted[i].first) << i;
    EXPECT_EQ(groups[i].options.weight_decay, wanted[i].second) << i;
  }
}

TEST(ParameterGroups, ParametersOfAtMostOneDimensionHaveADecayOfTheirOwnInEachGroup) {
  const std::vector<ParameterGroup> groups =
      parameter_groups(parameters(), with({{.params = {"fc", "bn1"}, .lr_mult = 2, .decay_mult = 4}}, 0.5));
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_THAT(names_in(groups[0]), ElementsAre("conv1.weight", "layer1.0.conv1.weight", "layer10.0.conv1.weight"));
  EXPECT_THAT(names_in(groups[1]), ElementsAre("layer1.0.bn1.weight", "scale"));
  EXPECT_THAT(names_in(groups[2]), ElementsAre("fc.weight"));
  EXPECT_THAT(names_in(groups[3]), ElementsAre("bn1.weight", "bn1.bias", "fc.bias"));
  const std::vector<std::pair<double, double>> wanted{{1, 0.25}, {1, 0.125}, {2, 1}, {2, 0.5}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i].options.lr, 0.5) << i;
    EXPECT_EQ(groups[i].lr_mult, wanted[i].first) << i;
    EXPECT_EQ(groups[i].options.weight_decay, wanted[i].second) << i;
  }
}

std::vector<std::pair<double, std::vector<std::string>>> by_lr_mult(const std::vector<ParameterGroup>& groups) {
  std::vector<std::pair<double, std::vector<std::string>>> found;
  for (const ParameterGroup& group : groups) found.emplace_back(group.lr_mult, names_in(group));
  return found;
}

TEST(ParameterGroups, EachLayerHasTheRateOfTheNextTimesItsDecay) {
  OptimizerOptions options = with({});
  options.layer_decay = 0.5;
  using Found = std::vector<std::pair<double, std::vector<std::string>>>;
  EXPECT_EQ(by_lr_mult(parameter_groups(parameters(), options)),
            (Found{{0.125, {"conv1.weight", "bn1.weight", "bn1.bias"}},
                   {0.25, {"layer1.0.conv1.weight", "layer1.0.bn1.weight"}},
                   {0.5, {"layer10.0.conv1.weight"}},
                   {1.0, {"fc.weight", "fc.bias", "scale"}}}));

  options.group = {{.params = {"layer10", "fc"}, .lr_mult = 4}};
  options.decay_mult_1d = 0;
  const std::vector<ParameterGroup> groups = parameter_groups(parameters(), options);
  EXPECT_EQ(by_lr_mult(groups), (Found{{0.125, {"conv1.weight"}},
                                       {0.125, {"bn1.weight", "bn1.bias"}},
                                       {0.25, {"layer1.0.conv1.weight"}},
                                       {0.25, {"layer1.0.bn1.weight"}},
                                       {1.0, {"scale"}},
                                       {2.0, {"layer10.0.conv1.weight"}},
                                       {4.0, {"fc.weight"}},
                                       {4.0, {"fc.bias"}}}));
  for (const ParameterGroup& group : groups) EXPECT_EQ(group.options.layer_decay, 1);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[2].options.weight_decay, 0.25);
}

TEST(ParameterGroups, LayersOfATransformerAreItsNumberedBlocksAndWhatIsAroundThem) {
  Named of_vit;
  for (const char* name : {"class_token", "conv_proj.weight", "encoder.pos_embedding",
                           "encoder.layers.encoder_layer_0.ln_1.weight", "encoder.layers.encoder_layer_0.mlp.0.weight",
                           "encoder.layers.encoder_layer_1.ln_1.weight", "encoder.ln.weight", "heads.head.weight"}) {
    of_vit.emplace_back(name, at::ones({2, 2}).requires_grad_());
  }
  OptimizerOptions options = with({});
  options.layer_decay = 0.5;
  const std::vector<ParameterGroup> groups = parameter_groups(of_vit, options);
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_THAT(names_in(groups[0]), ElementsAre("class_token", "conv_proj.weight", "encoder.pos_embedding"));
  EXPECT_THAT(names_in(groups[1]),
              ElementsAre("encoder.layers.encoder_layer_0.ln_1.weight", "encoder.layers.encoder_layer_0.mlp.0.weight"));
  EXPECT_THAT(names_in(groups[2]), ElementsAre("encoder.layers.encoder_layer_1.ln_1.weight"));
  EXPECT_THAT(names_in(groups[3]), ElementsAre("encoder.ln.weight", "heads.head.weight"));
}

TEST(ParameterGroups, ANumberedHeadIsTheLastLayer) {
  Named of_mobilenet;
  for (const char* name : {"features.0.0.weight", "features.1.block.0.0.weight", "classifier.0.weight",
                           "classifier.3.weight", "classifier.3.bias"}) {
    of_mobilenet.emplace_back(name, at::ones({2, 2}).requires_grad_());
  }
  OptimizerOptions options = with({});
  options.layer_decay = 0.5;
  using Found = std::vector<std::pair<double, std::vector<std::string>>>;
  EXPECT_EQ(by_lr_mult(parameter_groups(of_mobilenet, options)),
            (Found{{0.125, {"features.0.0.weight"}},
                   {0.25, {"features.1.block.0.0.weight"}},
                   {0.5, {"classifier.0.weight"}},
                   {1.0, {"classifier.3.weight", "classifier.3.bias"}}}));
}

TEST(ParameterGroups, ALayerDecayWantsNumberedBlocks) {
  const Named flat{{"fc1.weight", at::ones({2, 2}).requires_grad_()},
                   {"fc2.weight", at::ones({2, 2}).requires_grad_()}};
  OptimizerOptions options = with({});
  options.layer_decay = 0.5;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { parameter_groups(flat, options); }),
              HasSubstr("optimizer.layer_decay is 0.5; wanted a model with numbered blocks, as layer1.0, found none"));
}

TEST(ParameterGroups, GroupsWithoutParametersAreLeftOut) {
  EXPECT_EQ(parameter_groups(parameters(), with({{.params = {"*"}}})).size(), 1U);
  const std::vector<ParameterGroup> groups = parameter_groups(parameters(), with({{.params = {"*.conv1"}}}, 0));
  ASSERT_EQ(groups.size(), 3U);  // Convolutions are of more than one dimension.
  EXPECT_THAT(names_in(groups[2]), ElementsAre("layer1.0.conv1.weight", "layer10.0.conv1.weight"));
}

TEST(ParameterGroups, EachGroupIsUpdatedAtItsOwnRate) {
  const Named all = parameters();
  Optimizer optimizer{parameter_groups(all, with({{.params = {"conv1", "bn1", "layer*"}, .lr_mult = 0}}))};
  for (const auto& [name, parameter] : all) parameter.mutable_grad() = at::ones(parameter.sizes());
  const Named before = clones(all);
  optimizer.step([](double lr) { return lr; });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_in_last = all[i].first.starts_with("fc.") || all[i].first == "scale";
    EXPECT_EQ(all[i].second.equal(before[i].second), !is_in_last) << all[i].first;
  }
}

TEST(ParameterGroups, AScheduleEndsForEachGroupAtItsMultipleOfEtaMin) {
  const Named all = parameters();  // Ones.
  OptimizerOptions options = with({{.params = {"layer1"}, .lr_mult = 0}, {.params = {"fc"}, .lr_mult = 0.5}});
  options.name = OptimizerName::sgd;
  options.momentum = 0;
  options.weight_decay = 0;
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::CosineAnnealingLR;
  schedule.eta_min = 0.25;
  Trainer trainer(ModelState{all, {}, [](bool) {}}, Optimizer{parameter_groups(all, options)}, {}, {}, schedule,
                  /*optimizer_steps_total=*/2);
  trainer.progress().optimizer_steps = 1;  // The last.
  EXPECT_EQ(trainer.learning_rate(), 0.25);
  EXPECT_EQ(trainer.learning_rates(), (std::vector<double>{0.25, 0.0, 0.125}));
  const auto sum = [&all] {
    at::Tensor loss = at::ones({});
    for (const auto& [name, parameter] : all) loss = loss.add(parameter.sum());
    return Output{loss, {}};
  };
  trainer.step(sum, /*samples=*/1);
  for (const auto& [name, parameter] : all) {
    const double rate = name.starts_with("layer1.") ? 0 : name.starts_with("fc.") ? 0.125 : 0.25;
    EXPECT_TRUE(parameter.eq(1 - rate).all().item<bool>()) << name;
  }
}

TEST(ParameterGroups, GroupsThatSelectNothingAreRefused) {
  EXPECT_EQ(refusal({{.params = {"fc"}}, {}}),
            "train: optimizer.group[1].params is empty; wanted names of parameters or modules");
  EXPECT_EQ(refusal({{.params = {"fc", "layer2"}}}),
            "train: optimizer.group[0].params: \"layer2\" names no parameter and no module, did you mean layer1?");
  EXPECT_THAT(refusal({{.params = {"bn1.wieght"}}}), EndsWith("did you mean bn1.weight?"));
  EXPECT_EQ(
      refusal({{.params = {"backbone*"}}}),
      "train: optimizer.group[0].params: \"backbone*\" names no parameter and no module; the model has conv1, bn1, "
      "layer1, layer10, fc, scale");
  EXPECT_THAT(refusal({{.params = {""}}}), HasSubstr("\"\" names no parameter and no module"));
  EXPECT_EQ(refusal({{.params = {"fc"}}, {.params = {"bn1", "fc.bias"}}}),
            "train: optimizer.group[1].params: \"fc.bias\" names only parameters that an earlier group has");
}

TEST(ParameterGroups, LeaveFrozenParametersOutButCountTheirBlocks) {
  Named all = parameters();
  for (auto& [name, parameter] : all) parameter.requires_grad_(!name.starts_with("layer1."));
  const auto names = [](const std::vector<ParameterGroup>& groups) {
    std::vector<std::string> found;
    for (const ParameterGroup& group : groups) {
      for (const auto& [name, parameter] : group.parameters) found.push_back(name);
    }
    return found;
  };
  EXPECT_THAT(names(parameter_groups(all, {})), ElementsAre("conv1.weight", "bn1.weight", "bn1.bias",
                                                            "layer10.0.conv1.weight", "fc.weight", "fc.bias", "scale"));
  OptimizerOptions options;
  options.layer_decay = 0.5;
  options.group = {{.params = {"layer1"}, .lr_mult = 2}};  // All of it frozen: a group without parameters.
  const std::vector<ParameterGroup> groups = parameter_groups(all, options);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].lr_mult, 0.125) << "before two blocks, of which one is frozen";
  EXPECT_THAT(groups[1].parameters, ElementsAre(testing::Pair("layer10.0.conv1.weight", testing::_)));
  EXPECT_EQ(groups[1].lr_mult, 0.5);
}

}  // namespace
}  // namespace headrace
