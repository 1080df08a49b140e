// Memory that runs out within a step: what is computed again, and what stays as it was.

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/trainer.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/train/checkpoint.h"
#include "torch/train/equal_tensors.h"
#include "torch/train/micro_batch.h"
#include "torch/train/tiny_training.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr const char* kReason = "wanted 10 bytes, 90 are held, the limit is 95";

TrainOptions halving(std::int64_t gradient_accumulation_steps = 1) {
  TrainOptions options = tiny::averaging(0.9);
  options.on_out_of_memory = OutOfMemoryPolicy::halve;
  options.gradient_accumulation_steps = gradient_accumulation_steps;
  return options;
}

// With BatchNorm, dropout and averages; has no memory for more than `fits` samples at once.
class Limited {
 public:
  explicit Limited(const TrainOptions& options = halving()) {
    at::manual_seed(1);
    network_ = std::make_unique<tiny::Cnn>();
    const NamedTensors parameters = network_->state().parameters;
    trainer = std::make_unique<Trainer>(
        network_->state(), Optimizer(parameters, {}), [this](const TensorBatch& batch) { return forward(batch); },
        options, tiny::warmed_cosine(), 100);
    // The last gradient that a backward makes.
    parameters.front().second.register_hook([this](const at::Tensor& /*gradient*/) {
      if (!in_backward || at_hand_ <= fits) return;
      seen.resize(seen.size() - static_cast<std::size_t>(at_hand_));
      run_out();
    });
  }

  Output forward(const TensorBatch& batch) {
    Output output = (*network_)(batch);  // Buffers and generator have moved then.
    if (weighs) output.weight = 1 + batch["labels"].sum().item<double>();
    at_hand_ = batch.size();
    if (!in_backward && at_hand_ > fits) run_out();
    const at::Tensor first = batch["image"].flatten(1).select(1, 0).contiguous();
    seen.insert(seen.end(), first.const_data_ptr<float>(), first.const_data_ptr<float>() + first.numel());
    return output;
  }

  Named tensors() const {
    Named all = training_tensors(trainer->model(), trainer->averages(), trainer->optimizer());
    all.emplace_back("generator", generator_state());
    return all;
  }

  std::int64_t fits = kAny;
  bool in_backward = false;
  bool weighs = false;  // By the labels, so that no two parts weigh the same.
  std::function<void()> run_out = [] { throw c10::OutOfMemoryError(kReason); };
  std::vector<float> seen;  // A number of each sample that was computed to the end.
  std::unique_ptr<Trainer> trainer;

 private:
  std::unique_ptr<tiny::Cnn> network_;
  std::int64_t at_hand_ = 0;
};

class OutOfMemory : public ::testing::Test {
 protected:
  OutOfMemory() {
    apply_compute_threads(1);
    at::manual_seed(3);
    for (int i = 0; i < 6; ++i) batches_.push_back(tiny::random_batch(8));
  }

  // All batches from one random state; returns their losses.
  std::vector<double> train(Limited& run, const std::function<void(int)>& before_step) {
    at::manual_seed(7);
    std::vector<double> losses;
    for (int i = 0; i < 6; ++i) {
      before_step(i);
      losses.push_back(run.trainer->step(batches_[static_cast<std::size_t>(i)]).item<double>());
    }
    return losses;
  }

  std::vector<TensorBatch> batches_;
};

TEST_F(OutOfMemory, PartsAreEvenAndNoneIsTooLarge) {
  const auto parts = [](std::int64_t samples, std::int64_t micro_batch) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t left = samples; left > 0; left -= sizes.back()) sizes.push_back(part_size(left, micro_batch));
    return sizes;
  };
  EXPECT_THAT(parts(32, 0), ElementsAre(32));
  EXPECT_THAT(parts(32, 32), ElementsAre(32));
  EXPECT_THAT(parts(33, 17), ElementsAre(17, 16));
  EXPECT_THAT(parts(33, 16), ElementsAre(11, 11, 11));
  EXPECT_THAT(parts(10, 4), ElementsAre(4, 3, 3));
  EXPECT_THAT(parts(3, 1), ElementsAre(1, 1, 1));
}

TEST_F(OutOfMemory, AtStep3LosesNoSampleAndEqualsTheRunOfTheSmallerMicroBatch) {
  for (const bool in_backward : {false, true}) {
    Limited reference;
    const std::vector<double> wanted = train(reference, [&](int step) {
      if (step == 2) reference.trainer->progress().micro_batch = 4;
    });
    const Named wanted_tensors = clones(reference.tensors());

    Limited run;
    run.in_backward = in_backward;
    const std::vector<double> found = train(run, [&](int step) {
      if (step == 2) run.fits = 4;
    });
    EXPECT_EQ(found, wanted);
    expect_equal(run.tensors(), wanted_tensors);
    EXPECT_EQ(run.seen, reference.seen);
    EXPECT_EQ(run.seen.size(), 48U);
    EXPECT_EQ(run.trainer->take_mean_loss(), reference.trainer->take_mean_loss());
    const Progress& progress = run.trainer->progress();
    EXPECT_EQ(progress.optimizer_steps, 6);
    EXPECT_EQ(progress.batch, 6);
    EXPECT_EQ(progress.micro_batch, 4);
    EXPECT_EQ(progress.out_of_memory, 1);
    EXPECT_EQ(reference.trainer->progress().out_of_memory, 0);
    const std::string& said = run.trainer->last_out_of_memory();
    EXPECT_THAT(said, HasSubstr("in epoch 0, batch 2, memory ran out with 8 samples at once, from now on it is at most "
                                "4, on which the result of the model's BatchNorm depends: "));
    EXPECT_THAT(said, HasSubstr(kReason));
  }
}

TEST_F(OutOfMemory, AnOpenWindowKeepsItsGradients) {
  for (const auto& [in_backward, weighs] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
    Limited reference{halving(3)};
    reference.weighs = weighs;
    const std::vector<double> wanted = train(reference, [&](int step) {
      if (step == 4) reference.trainer->progress().micro_batch = 2;  // The second micro-batch of a window.
    });
    const Named wanted_tensors = clones(reference.tensors());
    Limited run{halving(3)};
    run.in_backward = in_backward;
    run.weighs = weighs;
    const std::vector<double> found = train(run, [&](int step) {
      if (step == 4) run.fits = 3;
    });
    EXPECT_EQ(found, wanted);
    expect_equal(run.tensors(), wanted_tensors);
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 2);
    EXPECT_EQ(run.trainer->progress().micro_batch, 2);
    EXPECT_EQ(run.trainer->progress().out_of_memory, 2);
    EXPECT_EQ(run.seen, reference.seen);
  }
}

TEST_F(OutOfMemory, WithALossScaleAndEveryGuardEqualsTheRunOfTheSmallerMicroBatch) {
  std::vector<TrainOptions> all(5, halving(2));
  all[0].loss_scale = 1024;
  all[1].step_guard.policy = GuardPolicy::skip;
  all[2].step_guard.policy = GuardPolicy::replace;
  all[3].step_guard.policy = GuardPolicy::lower_lr;
  all[4].step_guard.policy = GuardPolicy::rollback;
  all[4].step_guard.keep_every = 1;
  for (const TrainOptions& options : all) {
    Limited reference{options};
    const std::vector<double> wanted = train(reference, [&](int step) {
      if (step == 2) reference.trainer->progress().micro_batch = 4;
    });
    const Named wanted_tensors = clones(reference.tensors());
    Limited run{options};
    run.in_backward = true;
    EXPECT_EQ(train(run,
                    [&](int step) {
                      if (step == 2) run.fits = 4;
                    }),
              wanted);
    expect_equal(run.tensors(), wanted_tensors);
    expect_equal(run.trainer->last_good_state(), reference.trainer->last_good_state());
    EXPECT_EQ(run.trainer->loss_scale(), reference.trainer->loss_scale());
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 3);
    EXPECT_EQ(run.trainer->progress().out_of_memory, 1);
  }
}

TEST_F(OutOfMemory, OtherGeneratorsAreWhereTheyWereBeforeWhatRanOut) {
  Limited run;
  run.fits = 4;
  std::int64_t drawn = 0;
  run.run_out = [&drawn] {
    ++drawn;
    throw c10::OutOfMemoryError(kReason);
  };
  run.trainer->other_generators = {
      .state = [&drawn] { return at::full({1}, drawn, at::kByte); },
      .set_state = [&drawn](const at::Tensor& state) { drawn = state.item<std::int64_t>(); }};
  run.trainer->step(batches_[0]);
  EXPECT_EQ(run.trainer->progress().out_of_memory, 1);
  EXPECT_EQ(drawn, 0);
}

TEST_F(OutOfMemory, WhereItDoesNotHappenThePolicyChangesNoBit) {
  TrainOptions raising = halving(2);
  raising.on_out_of_memory = OutOfMemoryPolicy::raise;
  const auto nothing = [](int) {};
  Limited reference{raising};
  const std::vector<double> wanted = train(reference, nothing);
  const Named wanted_tensors = clones(reference.tensors());
  Limited run{halving(2)};
  EXPECT_EQ(train(run, nothing), wanted);
  expect_equal(run.tensors(), wanted_tensors);
  EXPECT_EQ(run.trainer->last_out_of_memory(), "");
}

TEST_F(OutOfMemory, EveryKindOfItIsKnownAndNothingElseIsTakenForIt) {
  const std::vector<std::function<void()>> kinds{
      [] { throw std::bad_alloc(); }, [] { throw c10::Error("DefaultCPUAllocator: can't allocate memory: 8 bytes"); },
      [] { throw Error(ErrorCode::out_of_memory, "data: no room"); }};
  for (const auto& kind : kinds) {
    Limited run;
    run.fits = 2;
    run.run_out = kind;
    run.trainer->step(batches_[0]);
    EXPECT_EQ(run.trainer->progress().micro_batch, 2);
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 1);
  }
  Limited run;
  run.fits = 2;
  run.run_out = [] { throw c10::Error("the shapes do not fit"); };
  EXPECT_THROW(run.trainer->step(batches_[0]), c10::Error);
  EXPECT_EQ(run.trainer->progress().micro_batch, 0);
}

TEST_F(OutOfMemory, WithOneSampleItIsAnErrorThatLeavesTheStateAsItWas) {
  for (const bool in_backward : {false, true}) {
    Limited run;
    run.in_backward = in_backward;
    run.trainer->step(batches_[0]);
    const Named before = clones(run.tensors());
    run.fits = 0;
    const std::string said = error_of(ErrorCode::out_of_memory, [&] { run.trainer->step(batches_[1]); });
    EXPECT_THAT(said, HasSubstr("train: in epoch 0, batch 1, memory ran out with 1 sample at once: "));
    EXPECT_THAT(said, HasSubstr(kReason));
    expect_equal(run.tensors(), before);
    EXPECT_EQ(run.trainer->progress().batch, 1);
    EXPECT_EQ(run.trainer->progress().window, 0);
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 1);
    for (const auto& [name, parameter] : run.trainer->model().parameters) EXPECT_FALSE(parameter.grad().defined());
    run.fits = 1;
    run.trainer->step(batches_[1]);
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 2);
  }
}

TEST_F(OutOfMemory, RaisesWhereTheStepCannotBeCutOrThePolicySaysSo) {
  Limited run;
  run.fits = 4;
  const auto whole = [&] { return run.forward(batches_[0]); };
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { run.trainer->step(whole, 8); }),
              HasSubstr("wanted a batch or a forward that can be cut"));
  EXPECT_EQ(run.trainer->progress().micro_batch, 0);

  Limited raising{TrainOptions{}};
  raising.fits = 4;
  EXPECT_THROW(raising.trainer->step(batches_[0]), c10::OutOfMemoryError);
  EXPECT_EQ(raising.trainer->progress().batch, 0);
}

TEST_F(OutOfMemory, ARunThatGoesOnFromACheckpointHasTheSameBits) {
  const TemporaryFolder folder;
  const RunState state = tiny::of_tiny();
  std::filesystem::path saved;
  Limited whole;
  train(whole, [&](int step) {
    if (step == 2) whole.fits = 4;
    if (step == 4) saved = save_checkpoint(folder.path(), *whole.trainer, state, 2);
  });
  const Named wanted = clones(whole.tensors());

  Limited resumed;  // Has memory for the whole batch again, and must not use it.
  load_checkpoint(saved, *resumed.trainer, state.model, /*weights_only=*/false);
  EXPECT_EQ(resumed.trainer->progress().micro_batch, 4);
  EXPECT_EQ(resumed.trainer->progress().out_of_memory, 1);
  for (std::size_t i = 4; i < 6; ++i) resumed.trainer->step(batches_[i]);
  expect_equal(resumed.tensors(), wanted);
}

TEST_F(OutOfMemory, PartsOfAStepAreToldAndCountedAsOne) {
  Limited run;
  run.trainer->progress().micro_batch = 3;
  std::vector<StepPart> told;
  run.trainer->on_part = [&](StepPart part) { told.push_back(part); };
  run.trainer->step(batches_[0]);
  EXPECT_THAT(told, ElementsAre(StepPart::forward, StepPart::backward, StepPart::optimizer));
  EXPECT_EQ(run.trainer->progress().batch, 1);
  EXPECT_EQ(run.trainer->progress().loss_samples, 8);
}

TrainOptions halving_plainly() {
  TrainOptions options;
  options.on_out_of_memory = OutOfMemoryPolicy::halve;
  return options;
}

// Without BatchNorm, wide enough for its activations to be most of what a step holds; one forward for any samples. Its
// heads, whose sum is the result, are branches that a backward finds ready at once.
class Wide {
 public:
  static constexpr std::int64_t kSamples = 128, kWidth = 1024;
  static constexpr std::int64_t kHiddenBytes = kSamples * kWidth * 4;  // Of which a forward keeps six.

  explicit Wide(const TrainOptions& options, int heads = 1) {
    at::manual_seed(2);
    parameters_ = {{"first", at::randn({kWidth, 16}).mul_(0.2).requires_grad_()}};
    for (int i = 0; i < heads; ++i) {
      parameters_.emplace_back("head" + std::to_string(i), at::randn({4, kWidth}).mul_(0.03).requires_grad_());
    }
    input_ = at::randn({kSamples, 16});
    labels_ = at::randint(4, {kSamples}, at::kLong);
    OptimizerOptions sgd;
    sgd.name = OptimizerName::sgd;
    sgd.lr = 0.02;
    sgd.momentum = 0.9;
    trainer = std::make_unique<Trainer>(ModelState{parameters_, {}, [](bool) {}}, Optimizer(parameters_, sgd),
                                        Forward{}, options, LrSchedulerOptions{}, 100);
  }

  double step() {
    computed.clear();
    const PartForward forward = [this](std::int64_t begin, std::int64_t end) {
      at::Tensor hidden = at::linear(input_.slice(0, begin, end), parameters_[0].second);
      for (int i = 0; i < 6; ++i) hidden = hidden.tanh();
      if (runs_out && runs_out(begin, end)) throw c10::OutOfMemoryError(kReason);
      at::Tensor logits = at::linear(hidden, parameters_[1].second);
      for (std::size_t i = 2; i < parameters_.size(); ++i) logits = logits + at::linear(hidden, parameters_[i].second);
      Output output{at::cross_entropy_loss(logits, labels_.slice(0, begin, end)), {}};
      output.samples = counted;
      if (bad_from >= begin && bad_from < end) output.loss = output.loss.mul(std::nan(""));
      computed.push_back(end - begin);
      return output;
    };
    return trainer->step(forward, kSamples).item<double>();
  }

  std::vector<std::int64_t> computed;  // Sizes of the forwards that came to their end, in the last step.
  std::int64_t bad_from = -1;          // The part with this sample has a loss that is NaN.
  std::function<bool(std::int64_t begin, std::int64_t end)> runs_out;
  std::optional<std::int64_t> counted;  // As forward says.
  std::unique_ptr<Trainer> trainer;

 private:
  NamedTensors parameters_;
  at::Tensor input_, labels_;
};

// A limit that a forward keeps to, and not the gradient of its last hidden layer.
std::int64_t limit_within_backward(Wide& run) {
  std::int64_t kept = 0;
  run.trainer->on_part = [&kept](StepPart part) {
    if (part == StepPart::backward) kept = tensor_bytes();
  };
  run.step();
  run.trainer->on_part = {};
  return kept + Wide::kHiddenBytes / 2;
}

// Of two branches that are ready, one runs out and the other still waits, with all that is below it.
TEST(MemoryLimit, ABackwardThatFailsLeavesNothingOfItsBranches) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  Wide halved{halving_plainly(), /*heads=*/2};
  halved.trainer->set_memory_limit(limit_within_backward(halved));
  const std::int64_t held = tensor_bytes();
  halved.step();
  EXPECT_THAT(halved.computed, ElementsAre(Wide::kSamples, Wide::kSamples / 2, Wide::kSamples / 2));
  EXPECT_EQ(halved.trainer->progress().micro_batch, Wide::kSamples / 2);
  EXPECT_EQ(halved.trainer->progress().out_of_memory, 1);
  EXPECT_EQ(tensor_bytes(), held);
}

TEST(MemoryLimit, ABackwardThatFailsUnderRaiseLeavesNothingOfItsBranches) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  Wide raising{{}, /*heads=*/2};
  raising.trainer->set_memory_limit(limit_within_backward(raising));
  const std::int64_t held = tensor_bytes();
  EXPECT_THROW(raising.step(), c10::OutOfMemoryError);
  EXPECT_EQ(tensor_bytes(), held);
  raising.trainer->set_memory_limit(0);
  raising.step();
  EXPECT_EQ(raising.trainer->progress().optimizer_steps, 2);
  EXPECT_EQ(tensor_bytes(), held);
}

TEST(MemoryLimit, ThatIsLoweredAndRaisedInMidRunLeavesTheLossCurve) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  std::vector<double> wanted;
  {
    Wide undisturbed{halving_plainly()};
    for (int i = 0; i < 12; ++i) wanted.push_back(undisturbed.step());
  }
  Wide run{halving_plainly()};
  Progress& progress = run.trainer->progress();
  std::vector<double> found;
  std::int64_t held = 0;
  for (int i = 0; i < 4; ++i) {  // The optimizer's state is there after the first.
    held = tensor_bytes();
    reset_peak_tensor_bytes();
    found.push_back(run.step());
  }
  const std::int64_t needed = peak_tensor_bytes() - held;
  EXPECT_THAT(run.computed, ElementsAre(128));

  const Applied lowered = run.trainer->set_memory_limit(held + needed * 7 / 10);
  EXPECT_EQ(lowered.key, "train.memory_limit_mib");
  EXPECT_EQ(lowered.applied, lowered.requested) << lowered.reason;
  for (int i = 0; i < 4; ++i) {
    found.push_back(run.step());
    ASSERT_GE(run.computed.size(), 2U);
    EXPECT_EQ(run.computed[run.computed.size() - 1] + run.computed[run.computed.size() - 2], 128);
  }
  EXPECT_THAT(run.computed, ElementsAre(64, 64));
  EXPECT_EQ(progress.micro_batch, 64);
  EXPECT_EQ(progress.out_of_memory, 1);
  EXPECT_THAT(run.trainer->last_out_of_memory(), HasSubstr("in epoch 0, batch 4, memory ran out with 128 samples"));

  run.trainer->set_memory_limit(0);
  for (int i = 0; i < 4; ++i) {
    found.push_back(run.step());
    EXPECT_THAT(run.computed, ElementsAre(128));
  }
  EXPECT_EQ(progress.out_of_memory, 1);
  EXPECT_EQ(progress.optimizer_steps, 12);
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-5) << "step " << i;
  EXPECT_LT(wanted.back(), wanted.front()) << "it learns something";
}

TEST(MemoryLimit, GrowsByDoublingUntilMemoryRunsOutAgain) {
  Wide run{halving_plainly()};
  Progress& progress = run.trainer->progress();
  progress.micro_batch = 16;
  run.step();
  EXPECT_EQ(progress.micro_batch, 16) << "nobody said that there is more";
  run.trainer->set_memory_limit(0);
  for (const std::int64_t wanted : {32, 64, 128, 128}) {
    run.step();
    EXPECT_EQ(progress.micro_batch, wanted);
    EXPECT_EQ(run.computed, std::vector<std::int64_t>(static_cast<std::size_t>(128 / wanted), wanted));
  }
}

TEST(MemoryLimit, DoesNotGrowWhereARunWouldEndByIt) {
  Wide raising{TrainOptions{}};
  raising.trainer->progress().micro_batch = 16;  // As a plan has chosen it.
  raising.trainer->set_memory_limit(0);
  raising.step();
  EXPECT_EQ(raising.trainer->progress().micro_batch, 16);
}

TEST(MemoryLimit, AStepThatThrowsHasNotGrown) {
  Wide run{halving_plainly()};
  Progress& progress = run.trainer->progress();
  progress.micro_batch = 16;
  run.trainer->set_memory_limit(0);
  run.bad_from = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(run.step(), Error);
    EXPECT_EQ(progress.micro_batch, 16);
  }
  run.bad_from = -1;
  run.step();
  EXPECT_EQ(progress.micro_batch, 32);
}

TEST(MemoryLimit, ThatIsSetAgainNeitherBeginsNorEndsGrowing) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  Wide run{halving_plainly()};
  Progress& progress = run.trainer->progress();
  progress.micro_batch = 16;
  const auto grows_with = [&](std::int64_t limit) {
    run.trainer->set_memory_limit(limit);
    return progress.micro_batch_grows;
  };
  EXPECT_FALSE(grows_with(kGib));
  EXPECT_FALSE(grows_with(kGib));
  EXPECT_TRUE(grows_with(2 * kGib));
  EXPECT_TRUE(grows_with(2 * kGib));
  EXPECT_FALSE(grows_with(kGib));
  EXPECT_TRUE(grows_with(0));
}

// As a cell of a notebook that runs twice, and as trainers that end in the order in which they were made.
TEST(MemoryLimit, IsThatOfTheNewestTrainerThereIs) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  constexpr std::int64_t kMib = std::int64_t{1} << 20;
  const std::int64_t before = tensor_memory_limit();
  const auto with_limit = [](std::int64_t mib) {
    TrainOptions options;
    options.memory_limit_mib = mib;
    return std::make_unique<Wide>(options);
  };
  std::unique_ptr<Wide> first = with_limit(4096), second = with_limit(4096);
  first.reset();
  EXPECT_EQ(tensor_memory_limit(), 4096 * kMib);
  second.reset();
  EXPECT_EQ(tensor_memory_limit(), before);

  first = with_limit(4096);
  second = with_limit(8192);
  first.reset();
  EXPECT_EQ(tensor_memory_limit(), 8192 * kMib);
  second.reset();
  EXPECT_EQ(tensor_memory_limit(), before);

  first = with_limit(4096);
  second = with_limit(8192);
  const Applied ended = second->trainer->set_memory_limit(0);
  EXPECT_EQ(tensor_memory_limit(), 4096 * kMib) << "the first trainer has one still";
  EXPECT_EQ(ended.applied, "4096");
  EXPECT_THAT(ended.reason, HasSubstr("another limit"));
  second->trainer->set_memory_limit(2048 * kMib);
  EXPECT_EQ(tensor_memory_limit(), 2048 * kMib);
  first.reset();
  EXPECT_EQ(tensor_memory_limit(), 2048 * kMib);
  second.reset();
  EXPECT_EQ(tensor_memory_limit(), before);
}

// Whose memory is not counted yet.
at::Tensor made_before(at::IntArrayRef sizes) {
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * sizeof(float);
  const at::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetDefaultCPUAllocator(), /*resizable=*/true);
  return at::empty({0}).set_(storage, 0, sizes);
}

TEST(MemoryLimit, CountsAllThatATrainingHolds) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  const NamedTensors parameters{{"weight", at::zeros({5000}).requires_grad_()}};
  Trainer trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, {}), Forward{}, tiny::averaging(0.9),
                  {}, 100);
  std::int64_t wanted = 0;
  const auto make_older = [&wanted](at::Tensor tensor) {
    tensor.set_data(made_before(tensor.sizes()));
    wanted += static_cast<std::int64_t>(tensor.nbytes());
  };
  make_older(parameters[0].second);
  for (const auto& [name, average] : trainer.averages()) make_older(average);
  for (const auto& [name, tensor] : trainer.optimizer().state()) {
    if (tensor.numel() == 5000) make_older(tensor);
  }
  parameters[0].second.mutable_grad() = made_before({5000});
  wanted += 20000;
  EXPECT_EQ(wanted, 5 * 20000) << "weight, gradient, average and two of AdamW";
  const std::int64_t before = tensor_bytes();
  trainer.set_memory_limit(std::int64_t{1} << 30);
  EXPECT_EQ(tensor_bytes() - before, wanted);
}

// The second part's dense gradient fits beside the first one's sparse one; their sum does not. To make the part again
// would add it twice.
TEST(MemoryLimit, ThatRunsOutWhileGradientsAreAddedUpIsAnError) {
  if (const std::string why = watch_tensor_memory().reason; !why.empty()) GTEST_SKIP() << why;
  constexpr std::int64_t kRows = 4096, kColumns = 64, kTable = kRows * kColumns * 4;
  const NamedTensors parameters{{"table", at::zeros({kRows, kColumns}).requires_grad_()}};
  OptimizerOptions sgd;
  sgd.name = OptimizerName::sgd;
  sgd.weight_decay = 0;
  Trainer trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, sgd), Forward{}, halving_plainly(), {},
                  100);
  const at::Tensor rows = at::randint(kRows, {8}, at::kLong);
  std::vector<std::int64_t> begun;
  const PartForward forward = [&](std::int64_t begin, std::int64_t end) {
    begun.push_back(begin);
    const at::Tensor found = at::embedding(parameters[0].second, rows.slice(0, begin, end), /*padding_idx=*/-1,
                                           /*scale_grad_by_freq=*/false, /*sparse=*/begin == 0);
    return Output{found.add(1).square().mean(), {}};
  };
  trainer.progress().micro_batch = 4;
  trainer.set_memory_limit(tensor_bytes() + kTable * 3 / 2);
  EXPECT_THROW(trainer.step(forward, 8), c10::OutOfMemoryError);
  EXPECT_THAT(begun, ElementsAre(0, 4));
  EXPECT_EQ(trainer.progress().micro_batch, 4);
  EXPECT_EQ(trainer.progress().out_of_memory, 0);
  EXPECT_EQ(trainer.progress().window, 0);
  EXPECT_EQ(trainer.progress().window_weight, 0);
  EXPECT_FALSE(parameters[0].second.grad().defined());

  trainer.set_memory_limit(0);
  trainer.progress().micro_batch_grows = false;
  trainer.step(forward, 8);
  EXPECT_EQ(trainer.progress().optimizer_steps, 1);
}

TEST(MemoryLimit, IsTheTrainersAndEndsWithIt) {
  const std::int64_t before = tensor_memory_limit();
  TrainOptions options;
  options.memory_limit_mib = 4096;
  {
    const Wide run{options};
    const Applied& limit = run.trainer->applied_memory_limit();
    EXPECT_EQ(limit.requested, "4096");
    if (limit.reason.empty()) {
      EXPECT_EQ(limit.applied, "4096");
      EXPECT_EQ(tensor_memory_limit(), std::int64_t{4096} << 20);
    } else {
      EXPECT_EQ(limit.applied, "0");
    }
  }
  EXPECT_EQ(tensor_memory_limit(), before);
}

TEST(MemoryLimit, BelowTheParametersIsRefused) {
  const NamedTensors parameters{{"weight", at::zeros({600, 600}).requires_grad_()}};
  TrainOptions options;
  options.memory_limit_mib = 1;
  const auto make = [&] {
    Trainer(ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, {}), Forward{}, options, {}, 100);
  };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, make),
              HasSubstr("train: memory_limit_mib: wanted at least the 1.37"));
  const Wide run{TrainOptions{}};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { run.trainer->set_memory_limit(-1); }),
              HasSubstr("memory_limit_mib: wanted at least 0"));
  for (const std::int64_t mib : {std::int64_t{-1}, (std::int64_t{1} << 24) + 1, std::int64_t{1} << 44}) {
    options.memory_limit_mib = mib;
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { const Wide refused{options}; }),
                HasSubstr("train: memory_limit_mib: wanted 0 to 16777216, found " + std::to_string(mib)));
  }
}

// Part of a batch has been added when it happens; that stays, and the rest is cut.
TEST(PartsOfABatch, ALaterOneThatRunsOutIsCutUnderEveryGuard) {
  for (const GuardPolicy policy : {GuardPolicy::raise, GuardPolicy::skip, GuardPolicy::rollback}) {
    TrainOptions options = halving_plainly();
    options.step_guard.policy = policy;
    Wide reference{options}, run{options};
    run.trainer->progress().micro_batch = 64;
    run.runs_out = [](std::int64_t begin, std::int64_t end) { return begin > 0 && end - begin > 32; };
    EXPECT_NEAR(run.step(), reference.step(), 1e-6);
    EXPECT_THAT(run.computed, ElementsAre(64, 32, 32));
    EXPECT_EQ(run.trainer->progress().out_of_memory, 1);
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 1);
    const auto& found = run.trainer->model().parameters;
    const auto& wanted = reference.trainer->model().parameters;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(found[i].second.allclose(wanted[i].second, /*rtol=*/0, /*atol=*/1e-6)) << found[i].first;
    }

    run.bad_from = 96;
    if (policy == GuardPolicy::raise) continue;
    run.step();
    EXPECT_THAT(run.computed, ElementsAre(32, 32, 32, 32));
    EXPECT_EQ(run.trainer->progress().guard.losses, 1);
    EXPECT_EQ(run.trainer->progress().optimizer_steps, 1);
    EXPECT_EQ(run.trainer->progress().micro_batch, 32);
  }
}

TEST(PartsOfABatch, CountTheSamplesThatForwardSays) {
  Wide run{TrainOptions{}};
  run.trainer->progress().micro_batch = 64;
  run.counted = 10;
  run.step();
  EXPECT_EQ(run.trainer->progress().loss_samples, 20);
  run.counted = -1;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { run.step(); }),
              HasSubstr("wanted at least 0 samples from forward, found -1"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { run.trainer->step([](std::int64_t, std::int64_t) { return Output{}; }, -5); }),
              HasSubstr("train: step: samples: wanted at least 1, found -5"));
}

TEST(PartsOfABatch, WhatTheGuardLeavesOutIsTheWholeBatch) {
  TrainOptions options;
  options.step_guard.policy = GuardPolicy::skip;
  Wide run{options};
  run.trainer->progress().micro_batch = 32;
  run.bad_from = 40;
  run.step();
  EXPECT_THAT(run.computed, ElementsAre(32, 32));
  EXPECT_EQ(run.trainer->progress().skipped_updates, 1);
  EXPECT_EQ(run.trainer->progress().optimizer_steps, 0);
  EXPECT_EQ(run.trainer->progress().batch, 1);
  for (const auto& [name, parameter] : run.trainer->model().parameters) EXPECT_FALSE(parameter.grad().defined());

  options.step_guard.policy = GuardPolicy::raise;
  Wide raising{options};
  raising.trainer->progress().micro_batch = 32;
  raising.bad_from = 40;
  EXPECT_THAT(error_of(ErrorCode::numerics, [&] { raising.step(); }), HasSubstr("loss is nan in epoch 0, batch 0"));
  for (const auto& [name, parameter] : raising.trainer->model().parameters) EXPECT_FALSE(parameter.grad().defined());
}

TEST(PartsOfABatch, CountByTheSamplesThatCount) {
  at::manual_seed(5);
  const at::Tensor initial = at::randn({3, 4});
  TensorBatch batch{{"x", at::randn({6, 4})}, {"labels", at::randint(3, {6}, at::kLong)}};
  batch.valid = at::tensor({1, 1, 1, 1, 1, 0}, at::kByte);
  const auto loss_and_gradient = [&](std::int64_t micro_batch) {
    const NamedTensors parameters{{"weight", initial.clone().requires_grad_()}};
    const auto forward = [&parameters](const TensorBatch& part) {
      const at::Tensor each = at::cross_entropy_loss(at::linear(part["x"], parameters[0].second), part["labels"],
                                                     /*weight=*/{}, at::Reduction::None);
      return Output{each.mul(part.valid).sum().div(static_cast<double>(part.counted())), {}};
    };
    Trainer trainer{ModelState{parameters, {}, [](bool) {}}, Optimizer(parameters, {}), forward, {}, {}, 100};
    trainer.progress().micro_batch = micro_batch;
    at::Tensor gradient;
    trainer.on_part = [&](StepPart part) {
      if (part == StepPart::optimizer) gradient = parameters[0].second.grad().mul(trainer.gradient_factor());
    };
    const at::Tensor loss = trainer.step(batch);
    EXPECT_EQ(trainer.progress().loss_samples, 5);
    return std::pair(loss.item<double>(), gradient);
  };
  const auto [wanted_loss, wanted] = loss_and_gradient(0);
  const auto [loss, gradient] = loss_and_gradient(3);
  EXPECT_NEAR(loss, wanted_loss, 1e-6);
  EXPECT_LE((gradient - wanted).abs().max().item<double>(), 1e-6);
}

TEST(PartsOfABatch, AreCutFromEveryKindOfField) {
  TensorBatch batch;
  batch.add({.name = "image", .values = at::randn({4, 2})});
  batch.add({.name = "boxes",
             .values = at::randn({10, 4}),
             .offsets = at::tensor({0, 3, 3, 7, 10}, at::kLong),
             .present = at::tensor({1, 0, 1, 1}, at::kByte)});
  batch.valid = at::tensor({1, 1, 1, 0}, at::kByte);
  const TensorBatch part = batch.part(1, 3);
  EXPECT_EQ(part.size(), 2);
  EXPECT_EQ(part.counted(), 2);
  EXPECT_TRUE(part["image"].equal(batch["image"].slice(0, 1, 3)));
  EXPECT_TRUE(part["image"].is_alias_of(batch["image"]));
  EXPECT_TRUE(part["boxes"].equal(batch["boxes"].slice(0, 3, 7)));
  EXPECT_TRUE(part.field("boxes").offsets.equal(at::tensor({0, 0, 4}, at::kLong)));
  EXPECT_TRUE(part.field("boxes").present.equal(at::tensor({0, 1}, at::kByte)));
  EXPECT_EQ(batch.part(3, 4).counted(), 0);

  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { batch.part(2, 5); }),
              HasSubstr("wanted samples between 0 and 4, found 2 to 5"));
  batch.add({.name = "anchors", .values = at::zeros({9, 4})});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { batch.part(0, 2); }),
              HasSubstr("field anchors: wanted 4 samples, found 9"));
}

// Of 20 images in batches of 8; forward has memory for `fits` samples.
class Evaluated {
 public:
  explicit Evaluated(const TrainOptions& options) : training_(options) {}

  Evaluation evaluate() {
    sizes.clear();
    return headrace::evaluate(*training_.trainer, loader_, [this](const TensorBatch& batch) {
      sizes.push_back(batch.size());
      if (batch.size() > fits) throw c10::OutOfMemoryError(kReason);
      return (*training_.network)(batch);
    });
  }
  Progress& progress() { return training_.trainer->progress(); }

  std::int64_t fits = kAny;
  std::vector<std::int64_t> sizes;

 private:
  tiny::Training training_;
  Loader loader_{std::make_shared<tiny::Images>(20), tiny::batches_of(8), 1, false};
};

void expect_same(const Evaluation& found, const Evaluation& wanted) {
  EXPECT_EQ(found.samples, wanted.samples);
  EXPECT_EQ(found.accuracy, wanted.accuracy);
  EXPECT_NEAR(found.loss, wanted.loss, 1e-6);
}

TEST(EvaluationInParts, IsThatOfWholeBatchesWithinTheMemoryThatTrainingHas) {
  Evaluated run{TrainOptions{}};
  const Evaluation wanted = run.evaluate();
  EXPECT_THAT(run.sizes, ElementsAre(8, 8, 4));
  run.fits = run.progress().micro_batch = 3;
  expect_same(run.evaluate(), wanted);
  EXPECT_THAT(run.sizes, ElementsAre(3, 3, 2, 3, 3, 2, 2, 2));
  EXPECT_EQ(run.progress().micro_batch, 3);

  run.fits = 2;
  EXPECT_THROW(run.evaluate(), c10::OutOfMemoryError);
}

TEST(EvaluationInParts, HalvesWhereMemoryRunsOutAndLeavesTheTrainingAlone) {
  Evaluated run{halving_plainly()};
  const Evaluation wanted = run.evaluate();
  run.fits = 2;
  expect_same(run.evaluate(), wanted);
  EXPECT_THAT(run.sizes, ElementsAre(8, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2));
  EXPECT_EQ(run.progress().micro_batch, 0);
  EXPECT_EQ(run.progress().out_of_memory, 0);

  run.fits = 0;
  EXPECT_THROW(run.evaluate(), c10::OutOfMemoryError);
  EXPECT_THAT(run.sizes, ElementsAre(8, 4, 2, 1));
}

}  // namespace
}  // namespace headrace
