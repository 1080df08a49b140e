// A network, data and trainers small enough for tests: every kind of tensor that training touches, in microseconds.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <headrace/source.h>
#include <headrace/trainer.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/train/checkpoint.h"

namespace headrace::tiny {

inline constexpr int kSide = 8;

// `count` images of 8 x 8 in 4 classes, drawn from their index.
class Images final : public Source, KnownSamples {
 public:
  explicit Images(std::int64_t count, int channels = 1)
      : count_(count), channels_(channels), pixels_(static_cast<std::size_t>(count * kSide * kSide * channels)) {
    std::uint32_t state = 12345;
    for (std::uint8_t& pixel : pixels_) {
      state = state * 1664525U + 1013904223U;
      pixel = static_cast<std::uint8_t>(state >> 24);
    }
    info_ = {.schema = Schema::image_and_labels(kSide, kSide, channels),
             .num_classes = 4,
             .fingerprint = static_cast<std::uint64_t>(count * 4 + channels)};
  }
  std::int64_t size() const override { return count_; }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t index, Sample& sample) const override {
    const auto bytes = static_cast<std::size_t>(kSide * kSide * channels_);
    const std::span image = std::span{pixels_}.subspan(static_cast<std::size_t>(index) * bytes, bytes);
    sample.image().set_pixels(image, kSide, kSide, channels_);
    sample.set_label(label(index));
  }
  std::string name(std::int64_t index) const override { return "image " + std::to_string(index); }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override { return index % 4; }

 private:
  std::int64_t count_;
  int channels_;
  std::vector<std::uint8_t> pixels_;
  SourceInfo info_;
};

inline DataOptions batches_of(std::int64_t size) {
  DataOptions options;
  options.source = "images";
  options.batch_size = size;
  options.transform.mean = {0.5};
  options.transform.std = {0.25};
  return options;
}

// Convolution, batch norm, dropout and a linear layer: 4-D parameters, buffers, and draws from the generator.
class Cnn {
 public:
  explicit Cnn(std::int64_t channels = 1) {
    add("conv.weight", at::randn({6, channels, 3, 3}).mul_(0.3));
    add("conv.bias", at::zeros({6}));
    add("conv2.weight", at::randn({8, 6, 3, 3}).mul_(0.2));
    add("norm.weight", at::ones({8}));
    add("norm.bias", at::zeros({8}));
    add("last.weight", at::randn({4, 8 * 16}).mul_(0.1));
    add("last.bias", at::zeros({4}));
    state_.buffers = {{"norm.running_mean", at::zeros({8})}, {"norm.running_var", at::ones({8})}};
    state_.set_training = [this](bool training) { training_ = training; };
  }
  Cnn(const Cnn&) = delete;
  Cnn& operator=(const Cnn&) = delete;

  ModelState state() const { return state_; }
  bool training() const { return training_; }
  Output operator()(const TensorBatch& batch) const {
    const auto p = [this](std::size_t i) { return state_.parameters[i].second; };
    const at::Tensor first = at::conv2d(batch["image"], p(0), p(1), 1, 1).relu_();
    const at::Tensor second = at::batch_norm(at::conv2d(first, p(2), {}, 1, 1), p(3), p(4), state_.buffers[0].second,
                                             state_.buffers[1].second, training_, 0.1, 1e-5, false);
    const at::Tensor pooled = at::max_pool2d(second, 2).relu_().flatten(1);
    const at::Tensor logits = at::linear(at::dropout(pooled, 0.2, training_), p(5), p(6));
    return {at::cross_entropy_loss(logits, batch["labels"]), {{"logits", logits}}};
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    state_.parameters.emplace_back(name, at::Tensor(tensor).requires_grad_());
  }
  ModelState state_;
  bool training_ = true;
};

inline LrSchedulerOptions warmed_cosine() {
  LrSchedulerOptions schedule;
  schedule.name = LrSchedulerName::CosineAnnealingLR;
  schedule.warmup_steps = 2;
  return schedule;
}

// Operator by operator: what a test makes by hand has the same bits.
inline OptimizerOptions plain_update() {
  OptimizerOptions options;
  options.set_implementation(OptimizerImplementation::for_loop);
  return options;
}

// A trainer over its own network, both from `seed`.
struct Training {
  std::unique_ptr<Cnn> network;
  std::unique_ptr<Trainer> trainer;

  // Without an `optimizer`: plain_update().
  explicit Training(TrainOptions options = {}, std::optional<OptimizerOptions> optimizer = {}, std::uint64_t seed = 1,
                    LrSchedulerOptions schedule = warmed_cosine()) {
    at::manual_seed(seed);
    network = std::make_unique<Cnn>();
    const Cnn* forward = network.get();
    trainer = std::make_unique<Trainer>(
        network->state(), Optimizer(network->state().parameters, optimizer.value_or(plain_update())),
        [forward](const TensorBatch& batch) { return (*forward)(batch); }, options, std::move(schedule), 100);
  }

  // Parameters and buffers, shared, by name.
  std::vector<std::pair<std::string, at::Tensor>> weights() const {
    std::vector<std::pair<std::string, at::Tensor>> weights = trainer->model().parameters;
    for (const auto& entry : trainer->model().buffers) weights.push_back(entry);
    return weights;
  }
  // With optimizer state and averages.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const {
    std::vector<std::pair<std::string, at::Tensor>> all = weights();
    for (const auto& entry : trainer->optimizer().state()) all.push_back(entry);
    for (const auto& [name, average] : trainer->averages()) all.emplace_back("ema/" + name, average);
    return all;
  }
};

// With averages of this decay; 0: none.
inline TrainOptions averaging(double decay, bool warmup = true) {
  TrainOptions options;
  options.ema_decay = decay;
  options.ema_warmup = warmup;
  return options;
}

inline TensorBatch random_batch(std::int64_t size) {
  return {{"image", at::randn({size, 1, kSide, kSide})}, {"labels", at::randint(4, {size}, at::kLong)}};
}

// Each step on a batch of its own.
inline void train(const Training& training, int steps) {
  for (int i = 0; i < steps; ++i) training.trainer->step(random_batch(8));
}

// What a checkpoint of such a training says beside its tensors.
inline RunState of_tiny() {
  RunState run;
  run.model = "tiny";
  return run;
}

}  // namespace headrace::tiny
