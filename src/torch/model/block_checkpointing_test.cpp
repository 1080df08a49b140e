#include "torch/model/detail/block_checkpointing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "torch/model/recomputation_cases.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum ActivationCheckpointing;

class CheckpointedBlocks : public OneThread {};

constexpr double kMiB = 1 << 20;

at::Tensor drawn_images(std::int64_t batch = 4) {
  at::manual_seed(5);
  return at::randn({batch, 3, kSide, kSide});
}

void step(Network& network, const at::Tensor& images) {
  loss_of(network, images).backward();
}

// Bytes that the graph of a forward holds with its logits, as LibTorch's allocator reports them.
double counted_bytes(Network& network, const at::Tensor& images) {
  const TensorAllocations counted;
  const at::Tensor logits = network.forward(images);
  return static_cast<double>(TensorAllocations::bytes().value());
}

// The networks with blocks, and a list of some of each one's.
std::vector<ModelOptions> with_lists() {
  std::vector<ModelOptions> all{named("resnet18"), named("mobilenet_v3_small"), named("vit")};
  all[0].checkpoint_blocks = {"layer2", "layer4.1"};
  all[1].checkpoint_blocks = {"features.2", "features.5", "features.11"};
  all[2].checkpoint_blocks = {"encoder.layers.encoder_layer_1"};
  return all;
}

ModelOptions without_list(ModelOptions options) {
  options.checkpoint_blocks.clear();
  return options;
}

TEST_F(CheckpointedBlocks, AListGivesTheBitsOfThePlainNetwork) {
  for (const ModelOptions& options : with_lists()) {
    for (const Arithmetic arithmetic : {Arithmetic::float32, Arithmetic::bf16}) {
      const Values wanted = trained(*seeded(without_list(options), none), at::MemoryFormat::ChannelsLast, arithmetic);
      const auto network = seeded(options, blocks);
      expect_bits(wanted, trained(*network, at::MemoryFormat::ChannelsLast, arithmetic), options.name + ", a list");
      EXPECT_EQ(network->checkpointing_report().recomputed.size(), options.name == "vit" ? 1U : 3U);
    }
  }
}

// A budget between what none and all blocks keep at most, from 0 to 1.
double budget_mib(const ModelOptions& options, double share) {
  const auto network = seeded(options, blocks);
  step(*network, drawn_images());
  const CheckpointingReport report = network->checkpointing_report();
  const auto least = static_cast<double>(report.peak_bytes.value());
  return (least + share * (static_cast<double>(report.saved_bytes_before.value()) - least)) / kMiB;
}

TEST_F(CheckpointedBlocks, ABudgetGivesTheBitsOfThePlainNetworkBeforeAndAfterItsChoice) {
  for (const char* name : {"resnet18", "mobilenet_v3_small", "vit"}) {
    ModelOptions options = named(name);
    for (const Arithmetic arithmetic : {Arithmetic::float32, Arithmetic::bf16}) {
      options.checkpoint_budget_mib = 0;
      const Values wanted = trained(*seeded(options, none), at::MemoryFormat::ChannelsLast, arithmetic);
      options.checkpoint_budget_mib = budget_mib(options, 0.5);
      const auto network = seeded(options, blocks);
      expect_bits(wanted, trained(*network, at::MemoryFormat::ChannelsLast, arithmetic), options.name + ", a budget");
      const CheckpointingReport report = network->checkpointing_report();
      EXPECT_LT(report.recomputed.size(), report.blocks.size()) << name;
    }
  }
}

TEST_F(CheckpointedBlocks, AListIsWhatTheReportNamesAndWhatTheBackwardRepeats) {
  const auto convolutions_repeated = [](const std::vector<std::string>& names) {
    ModelOptions options = named("resnet18");
    options.checkpoint_blocks = names;
    const auto network = seeded(options, blocks);
    const at::Tensor loss = loss_of(*network, drawn_images());
    const OperatorCounts counts;
    loss.backward();
    return counts.of("aten::convolution");
  };
  EXPECT_EQ(convolutions_repeated({"layer1"}), 4);
  EXPECT_EQ(convolutions_repeated({"layer2.0"}), 3);  // With its shortcut.
  EXPECT_EQ(convolutions_repeated({"layer4", "layer1.1"}), 7);
  ModelOptions options = named("resnet18");
  options.checkpoint_blocks = {"layer4", "layer1.1"};
  const CheckpointingReport report = seeded(options, blocks)->checkpointing_report();
  EXPECT_THAT(report.recomputed, ElementsAre("layer1.1", "layer4.0", "layer4.1"));
  EXPECT_EQ(report.blocks.size(), 8U);
}

TEST_F(CheckpointedBlocks, BlocksHaveTheNamesThatTheirTensorsBeginWith) {
  for (const char* name : {"resnet18", "resnet50", "mobilenet_v3_small", "vit"}) {
    const auto network = seeded(named(name), blocks);
    for (const std::string& block : network->checkpointing_report().blocks) {
      bool is_found = false;
      for (const auto& [parameter, tensor] : network->state().parameters) {
        is_found = is_found || parameter.starts_with(block + ".");
      }
      EXPECT_TRUE(is_found) << name << ": " << block;
    }
  }
}

TEST_F(CheckpointedBlocks, TheReportsBytesAreWhatTheAllocatorCounts) {
  for (const char* name : {"resnet18", "mobilenet_v3_small", "vit"}) {
    const at::Tensor images = drawn_images(16);  // So that the generators' states that a ViT keeps are small beside it.
    const auto plain = seeded(named(name), none), network = seeded(named(name), blocks);
    step(*network, images);  // Measures.
    const CheckpointingReport report = network->checkpointing_report();
    const double before = counted_bytes(*plain, images), after = counted_bytes(*network, images);
    EXPECT_NEAR(static_cast<double>(report.saved_bytes_before.value()), before, 0.02 * before) << name;
    EXPECT_NEAR(static_cast<double>(report.saved_bytes_after.value()), after, 0.02 * before) << name;
    EXPECT_LT(after, before) << name;
    EXPECT_GE(report.peak_bytes.value(), report.saved_bytes_after.value()) << name;
  }
}

// Takes a step under the budget; the bytes that the next forward keeps, and how many blocks are computed again.
std::pair<double, std::size_t> kept_under_budget(ModelOptions options, double share) {
  options.checkpoint_budget_mib = budget_mib(options, share);
  const double budget = options.checkpoint_budget_mib * kMiB;
  const auto network = seeded(options, blocks);
  step(*network, drawn_images());
  const CheckpointingReport report = network->checkpointing_report();
  EXPECT_LE(static_cast<double>(report.peak_bytes.value()), budget) << options.name << ", " << share;
  EXPECT_FALSE(report.recomputed.empty()) << options.name << ", " << share;
  for (const Applied& applied : report.applied) EXPECT_EQ(applied.applied, applied.requested) << applied.reason;
  const double kept = counted_bytes(*network, drawn_images());
  EXPECT_LE(kept, 1.02 * budget) << options.name << ", " << share;
  return {kept, report.recomputed.size()};
}

TEST_F(CheckpointedBlocks, BudgetsAreKeptFromTheSecondStepOn) {
  for (const char* name : {"resnet18", "mobilenet_v3_small"}) {
    for (const double share : {0.2, 0.5, 0.8}) kept_under_budget(named(name), share);
  }
}

TEST_F(CheckpointedBlocks, OfEqualBlocksALargerBudgetKeepsMoreAndComputesFewerAgain) {
  ModelOptions vit = named("vit");
  vit.vit.num_layers = 8;
  const auto [small, many] = kept_under_budget(vit, 0.2);
  const auto [middle, some] = kept_under_budget(vit, 0.5);
  const auto [large, few] = kept_under_budget(vit, 0.8);
  EXPECT_LT(small, middle);
  EXPECT_LT(middle, large);
  EXPECT_GT(many, some);
  EXPECT_GT(some, few);
}

TEST_F(CheckpointedBlocks, EveryProcessMakesTheSameChoiceAsItDependsOnBytesAlone) {
  ModelOptions options = named("resnet18");
  options.checkpoint_budget_mib = budget_mib(options, 0.5);
  std::vector<std::string> first;
  for (int i = 0; i < 3; ++i) {
    const auto network = seeded(options, blocks);
    step(*network, drawn_images());
    const std::vector<std::string> found = network->checkpointing_report().recomputed;
    if (i == 0) first = found;
    EXPECT_EQ(found, first);
  }
  EXPECT_FALSE(first.empty());
}

Applied applied_of(const CheckpointingReport& report, const std::string& key) {
  for (const Applied& applied : report.applied) {
    if (applied.key == key) return applied;
  }
  ADD_FAILURE() << key << " is not in the report";
  return {};
}

TEST_F(CheckpointedBlocks, ABudgetThatCannotBeReachedSaysWhatWasReached) {
  ModelOptions options = named("resnet18");
  options.checkpoint_budget_mib = 0.001;
  const auto network = seeded(options, blocks);
  const Applied before = applied_of(network->checkpointing_report(), "model.checkpoint_budget_mib");
  EXPECT_EQ(before.applied, "none");
  EXPECT_THAT(before.reason, HasSubstr("after the first training step"));
  step(*network, drawn_images());
  const CheckpointingReport report = network->checkpointing_report();
  const Applied budget = applied_of(report, "model.checkpoint_budget_mib");
  const std::string least = fmt::format("{:.1f}", static_cast<double>(report.peak_bytes.value()) / kMiB);
  EXPECT_EQ(budget.requested, "0.001");
  EXPECT_EQ(budget.applied, least);
  EXPECT_THAT(budget.reason, HasSubstr("wanted at most 0.001 MiB kept at once for the backward, found " + least));
  EXPECT_THAT(budget.reason, HasSubstr("of 8 blocks computed again, the least"));
  EXPECT_FALSE(report.recomputed.empty());
}

TEST_F(CheckpointedBlocks, ALargeBudgetComputesNothingAgainFromTheSecondStepOn) {
  ModelOptions options = named("resnet18");
  options.checkpoint_budget_mib = 4096;
  const auto network = seeded(options, blocks);
  step(*network, drawn_images());
  EXPECT_THAT(network->checkpointing_report().recomputed, IsEmpty());
  const at::Tensor loss = loss_of(*network, drawn_images());
  const OperatorCounts counts;
  loss.backward();
  EXPECT_EQ(counts.of("aten::convolution"), 0);
}

TEST_F(CheckpointedBlocks, MoreImagesAreMeasuredAgainAndFewerAreNot) {
  const auto network = seeded(named("resnet18"), blocks);
  const auto before_of = [&](std::int64_t batch) {
    step(*network, drawn_images(batch));
    return network->checkpointing_report().saved_bytes_before.value();
  };
  const std::int64_t of_4 = before_of(4);
  EXPECT_EQ(before_of(3), of_4);
  const std::int64_t of_8 = before_of(8);
  EXPECT_GT(of_8, of_4 + of_4 / 2);
  EXPECT_EQ(before_of(4), of_8);
}

TEST_F(CheckpointedBlocks, NothingIsMeasuredInEvaluationOrWithoutAGraph) {
  const auto network = seeded(named("resnet18"), blocks);
  {
    const c10::AutoGradMode no_graph(false);
    network->forward(drawn_images());
  }
  network->state().set_training(false);
  network->forward(drawn_images());
  EXPECT_FALSE(network->checkpointing_report().saved_bytes_before.has_value());
}

TEST_F(CheckpointedBlocks, AForwardThatThrowsIsMeasuredTheNextTime) {
  ModelOptions options = named("resnet18");
  options.checkpoint_budget_mib = budget_mib(options, 0.5);
  const auto network = seeded(options, blocks);
  EXPECT_THROW(network->forward(at::randn({4, 5, kSide, kSide})), c10::Error);  // Of five channels.
  EXPECT_FALSE(network->checkpointing_report().saved_bytes_before.has_value());
  step(*network, drawn_images());
  EXPECT_TRUE(network->checkpointing_report().saved_bytes_before.has_value());
}

TEST_F(CheckpointedBlocks, OffloadingOnTheCpuIsNotAppliedAndSaysWhy) {
  ModelOptions options = named("mobilenet_v3_small");
  const Values wanted = trained(*seeded(options, none), at::MemoryFormat::Contiguous, Arithmetic::float32);
  options.checkpoint_offload = CheckpointOffload::host;
  const auto network = seeded(options, blocks);
  expect_bits(wanted, trained(*network, at::MemoryFormat::Contiguous, Arithmetic::float32), "offloading");
  const Applied offload = applied_of(network->checkpointing_report(), "model.checkpoint_offload");
  EXPECT_EQ(offload.requested, "host");
  EXPECT_EQ(offload.applied, "none");
  EXPECT_EQ(offload.reason, "the network is on cpu, which is not a CUDA device");
}

TEST_F(CheckpointedBlocks, AnUnknownNameIsRefusedWhenTheNetworkIsMadeAndLeavesOneThatIsThere) {
  ModelOptions options = named("resnet18");
  options.checkpoint_blocks = {"layr2.0"};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { seeded(options, blocks); }),
              HasSubstr("layer1.0 to layer4.1, or what they lie in, found \"layr2.0\", did you mean layer2.0?"));
  const auto network = seeded(named("resnet18"), blocks);
  const CheckpointingRequest wrong{.kind = blocks, .blocks = {"layer9"}};
  EXPECT_THROW(network->set_activation_checkpointing(wrong), Error);
  EXPECT_EQ(network->checkpointing_report().recomputed.size(), 8U);
}

TEST_F(CheckpointedBlocks, ActivationsBesideFusedOperatorsSayThatNothingIsComputedAgain) {
  ModelOptions options = named("small_cnn");
  const auto network = seeded(options, activations);
  EXPECT_EQ(applied_of(network->checkpointing_report(), "model.activation_checkpointing").applied, "activations");
  network->set_fusion(Fusion::norm_relu_pool);
  const Applied refused = applied_of(network->checkpointing_report(), "model.activation_checkpointing");
  EXPECT_EQ(refused.applied, "none");
  EXPECT_THAT(refused.reason, HasSubstr("model.fusion"));
  const auto resnet = seeded(named("resnet18"), activations);
  resnet->set_fusion(Fusion::norm_relu_pool);  // It has no such operators.
  EXPECT_EQ(applied_of(resnet->checkpointing_report(), "model.activation_checkpointing").applied, "activations");
}

TEST(LiveStorages, CountEachOnceAndNeitherViewsNorWhatIsOlderNorWhatIsGone) {
  const at::Tensor older = at::zeros({100});
  const LiveStorages storages(at::kCPU, {older});
  EXPECT_EQ(storages.bytes(), 0);
  older.add_(1);
  const at::Tensor view = older.narrow(0, 0, 10);
  EXPECT_EQ(storages.bytes(), 0);
  at::Tensor made = older.mul(2);
  const at::Tensor same = made.view({10, 10}).relu_();
  EXPECT_EQ(storages.bytes(), 400);
  {
    const at::Tensor more = at::ones({50});
    EXPECT_EQ(storages.bytes(), 600);
  }
  EXPECT_EQ(storages.bytes(), 400);
  made.reset();
  EXPECT_EQ(storages.bytes(), 400);  // Its view holds it.
}

TEST(LiveStorages, CountWhatAnOperatorMakesEmptyAndGivesItsSizeAfterwards) {
  const LiveStorages storages(at::kCPU, {});
  const at::Tensor grown = at::empty({0}).resize_({100});
  EXPECT_EQ(storages.bytes(), 400);
}

TEST(LiveStorages, CountWhatAGraphHolds) {
  const at::Tensor weight = at::ones({100}).requires_grad_();
  const LiveStorages storages(at::kCPU, {weight});
  at::Tensor sum = weight.mul(3).sin().sum();  // Keeps weight * 3.
  EXPECT_EQ(storages.bytes(), 400 + 4);
  sum = sum.detach();
  EXPECT_EQ(storages.bytes(), 4);
}

}  // namespace
}  // namespace headrace
