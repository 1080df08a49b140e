#include "torch/model/activation_checkpointing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kBlocks{"layer1.0", "layer1.1", "layer10.0", "layer2.0"};

std::vector<bool> named(const std::vector<std::string>& names) {
  return requested_blocks(kBlocks, {.kind = ActivationCheckpointing::blocks, .blocks = names});
}

ModelOptions of_blocks() {
  ModelOptions options;
  options.activation_checkpointing = ActivationCheckpointing::blocks;
  return options;
}

std::string refusal(const ModelOptions& options) {
  return error_of(ErrorCode::invalid_argument, [&] { checkpointing_request(options); });
}

TEST(CheckpointingRequest, NamesABlockOrAllThatLieInAName) {
  EXPECT_THAT(named({}), ElementsAre(true, true, true, true));
  EXPECT_THAT(named({"layer1.1"}), ElementsAre(false, true, false, false));
  EXPECT_THAT(named({"layer1"}), ElementsAre(true, true, false, false));  // Not layer10.
  EXPECT_THAT(named({"layer2.0", "layer1.0", "layer2"}), ElementsAre(true, false, false, true));
}

TEST(CheckpointingRequest, OfEveryKthTakesTheFirst) {
  const auto every = [](std::int64_t k) {
    return requested_blocks(kBlocks, {.kind = ActivationCheckpointing::blocks, .every = k});
  };
  EXPECT_THAT(every(1), ElementsAre(true, true, true, true));
  EXPECT_THAT(every(2), ElementsAre(true, false, true, false));
  EXPECT_THAT(every(1000), ElementsAre(true, false, false, false));
}

TEST(CheckpointingRequest, ANameOfNoBlockIsAnErrorThatTellsTheNearest) {
  const auto unknown = [](const std::string& name) {
    return error_of(ErrorCode::invalid_argument, [&] { named({"layer1", name}); });
  };
  EXPECT_EQ(unknown("layer2.O"),
            "model: model.checkpoint_blocks: wanted blocks of the network, layer1.0 to layer2.0, or what they lie in, "
            "found \"layer2.O\", did you mean layer2.0?");
  EXPECT_THAT(unknown("lyer1"), HasSubstr("did you mean layer1?"));
  EXPECT_THAT(unknown("layer"), HasSubstr("found \"layer\""));  // Begins their names, and is none.
  EXPECT_THAT(unknown("classifier"), ::testing::EndsWith("found \"classifier\""));
}

TEST(CheckpointingRequest, IsWhatTheOptionsSay) {
  ModelOptions options = of_blocks();
  options.checkpoint_budget_mib = 64;
  options.checkpoint_offload = CheckpointOffload::host;
  const CheckpointingRequest request = checkpointing_request(options);
  EXPECT_EQ(request.kind, ActivationCheckpointing::blocks);
  EXPECT_EQ(request.budget_mib, 64);
  EXPECT_EQ(request.offload, CheckpointOffload::host);
  EXPECT_EQ(request.every, 1);
}

TEST(CheckpointingRequest, RefusesTwoChoicesOfBlocksAtOnce) {
  ModelOptions options = of_blocks();
  options.checkpoint_every = 2;
  options.checkpoint_blocks = {"layer1", "layer2"};
  EXPECT_EQ(refusal(options),
            "model: wanted one of model.checkpoint_every, checkpoint_blocks and checkpoint_budget_mib, found "
            "checkpoint_every = 2 and checkpoint_blocks = [\"layer1\", \"layer2\"]");
  options.checkpoint_every = 1;
  options.checkpoint_budget_mib = 0.5;
  EXPECT_THAT(refusal(options), HasSubstr("and checkpoint_budget_mib = 0.5"));
}

TEST(CheckpointingRequest, RefusesChoicesOfBlocksWithoutBlocks) {
  ModelOptions list, budget, offload;
  list.checkpoint_blocks = {"layer1"};
  budget.checkpoint_budget_mib = 64;
  budget.activation_checkpointing = ActivationCheckpointing::activations;
  offload.checkpoint_offload = CheckpointOffload::host;
  EXPECT_EQ(refusal(list),
            "model: model.checkpoint_blocks = [\"layer1\"] is for model.activation_checkpointing = \"blocks\", found "
            "\"none\"");
  EXPECT_EQ(refusal(budget),
            "model: model.checkpoint_budget_mib = 64 is for model.activation_checkpointing = \"blocks\", found "
            "\"activations\"");
  EXPECT_THAT(refusal(offload), HasSubstr("model.checkpoint_offload = \"host\" is for"));
}

TEST(CheckpointingRequest, RefusesNumbersOutsideOfTheirRanges) {
  ModelOptions options = of_blocks();
  for (const double budget :
       {-1.0, 1e9, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    options.checkpoint_budget_mib = budget;
    EXPECT_THAT(refusal(options), HasSubstr("model.checkpoint_budget_mib: wanted 0 to 16777216, found"));
  }
  options.checkpoint_budget_mib = 0;
  options.checkpoint_every = 0;
  EXPECT_THAT(refusal(options), HasSubstr("model.checkpoint_every: wanted at least 1, found 0"));
}

}  // namespace
}  // namespace headrace
