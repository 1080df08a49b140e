// What plan_batch_size() finds under a limit of memory, beside the largest batch size that real steps of a trainer fit:
// ResNet-18 on 32x32 images, a network like ViT-Tiny, one of attention alone at two lengths, and one that pads its
// batch to whole buckets, so that its bytes rise in steps. Bars: within 5 % of the largest, 3 probes (4 for the last),
// no failure. The cost of the search (T-14) is a part of an epoch of 50,000 samples at the plan's rate, search
// included.
//   batch_planner_bench [threads]
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <headrace/batch_planner.h>
#include <headrace/error.h>
#include <headrace/model.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/tensor_memory.h"
#include "torch/tensor/translate.h"

namespace {

using namespace headrace;

constexpr std::int64_t kMost = 512, kClasses = 10, kEpochSamples = 50'000;

// A network with its batches: `batch_of` draws them.
struct Subject {
  std::string name;
  std::int64_t limit_mib;  // Beside what is held before its first step.
  std::shared_ptr<void> network;
  ModelState state;
  BatchOf batch_of;
};

Output loss_of(const at::Tensor& logits, const at::Tensor& labels) {
  return {at::cross_entropy_loss(logits, labels), {}};
}

at::Tensor labels_of(std::int64_t n) {
  return at::randint(kClasses, {n}, at::kLong);
}

Subject resnet18() {
  ModelOptions options;
  options.name = "resnet18";
  options.num_classes = kClasses;
  options.stem = Stem::small;
  const std::shared_ptr<Network> network = make_network(options, 3, 32, 32);
  return {"ResNet-18, 32x32", 512, network, network->state(), [network](std::int64_t n) -> BoundForward {
            return [network, images = at::randn({n, 3, 32, 32}), labels = labels_of(n)] {
              return loss_of(network->forward(images), labels);
            };
          }};
}

// Blocks of attention and a perceptron, each behind a layer norm and beside a shortcut (Vaswani et al. 2017, pre-norm).
class Encoder {
 public:
  Encoder(std::int64_t width, std::int64_t heads, std::int64_t blocks) : width_(width), heads_(heads), blocks_(blocks) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::string name = fmt::format("blocks.{}.", block);
      add_norm(name + "norm1");
      add_linear(name + "qkv", width, 3 * width);
      add_linear(name + "proj", width, width);
      add_norm(name + "norm2");
      add_linear(name + "fc1", width, 4 * width);
      add_linear(name + "fc2", 4 * width, width);
    }
    add_norm("norm");
    add_linear("head", width, kClasses);
    state_.set_training = [](bool) {};
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  void add_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
    add(name + ".weight", at::randn({outputs, inputs}).mul_(0.02));
    add(name + ".bias", at::zeros({outputs}));
  }
  const ModelState& state() const { return state_; }
  const at::Tensor& operator[](std::size_t index) const { return state_.parameters[index].second; }

  // (N, tokens, width) -> (N, classes).
  at::Tensor operator()(at::Tensor tokens) const {
    std::size_t place = 0;
    const auto next = [&] { return (*this)[place++]; };
    const auto norm = [&](const at::Tensor& x) {
      const at::Tensor weight = next(), bias = next();
      return at::layer_norm(x, {width_}, weight, bias);
    };
    const auto linear = [&](const at::Tensor& x) {
      const at::Tensor weight = next(), bias = next();
      return at::linear(x, weight, bias);
    };
    for (std::int64_t block = 0; block < blocks_; ++block) {
      const at::Tensor qkv = linear(norm(tokens)).view({tokens.size(0), tokens.size(1), 3, heads_, width_ / heads_});
      const auto part = [&](std::int64_t i) { return qkv.select(2, i).transpose(1, 2); };
      const at::Tensor mixed = at::scaled_dot_product_attention(part(0), part(1), part(2));
      tokens = tokens + linear(mixed.transpose(1, 2).reshape({tokens.size(0), tokens.size(1), width_}));
      tokens = tokens + linear(at::gelu(linear(norm(tokens))));
    }
    return linear(norm(tokens).mean(at::IntArrayRef{1}));
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    state_.parameters.emplace_back(name, at::Tensor(tensor).requires_grad_());
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", at::ones({width_}));
    add(name + ".bias", at::zeros({width_}));
  }

  std::int64_t width_, heads_, blocks_;
  ModelState state_;
};

Subject vit() {
  const auto encoder = std::make_shared<Encoder>(192, 3, 6);
  const std::size_t patch = encoder->state().parameters.size();
  encoder->add_linear("patch_embed.proj", 3 * 8 * 8, 192);
  return {"like ViT-Tiny, 6 blocks, 64x64", 512, encoder, encoder->state(), [=](std::int64_t n) -> BoundForward {
            return [=, images = at::randn({n, 3, 64, 64}), labels = labels_of(n)] {
              const at::Tensor kernels = (*encoder)[patch].view({192, 3, 8, 8});
              const at::Tensor patches = at::conv2d(images, kernels, (*encoder)[patch + 1], 8);
              return loss_of((*encoder)(patches.flatten(2).transpose(1, 2)), labels);
            };
          }};
}

Subject attention(std::int64_t tokens) {
  const auto encoder = std::make_shared<Encoder>(128, 4, 2);
  return {fmt::format("attention over {} tokens", tokens), 512, encoder, encoder->state(),
          [=](std::int64_t n) -> BoundForward {
            return [=, input = at::randn({n, tokens, 128}), labels = labels_of(n)] {
              return loss_of((*encoder)(input), labels);
            };
          }};
}

// Computes whole buckets of 64 samples, the last one filled up with zeros that do not count, as a compiled network
// does.
Subject buckets() {
  const auto encoder = std::make_shared<Encoder>(128, 4, 1);
  return {"buckets of 64 samples", 160, encoder, encoder->state(), [=](std::int64_t n) -> BoundForward {
            return [=, input = at::randn({n, 64, 128}), labels = labels_of(n)] {
              const at::Tensor whole = at::pad(input, {0, 0, 0, 0, 0, (n + 63) / 64 * 64 - n});
              return loss_of((*encoder)(whole).narrow(0, 0, n), labels);
            };
          }};
}

Trainer trainer_of(const Subject& subject) {
  OptimizerOptions options;
  options.set_implementation(OptimizerImplementation::fused);
  return Trainer(subject.state, Optimizer(subject.state.parameters, options), {}, {}, {}, 1'000'000);
}

// Two steps, the second with all that the first one leaves.
bool fits(Trainer& trainer, const Subject& subject, std::int64_t size, std::int64_t limit) {
  set_tensor_memory_limit(limit);
  bool fitted = true;
  try {
    const BoundForward forward = subject.batch_of(size);
    for (int i = 0; i < 2; ++i) trainer.step(forward, size);
  } catch (...) {
    if (translate(std::current_exception()).code() != ErrorCode::out_of_memory) throw;
    fitted = false;
  }
  set_tensor_memory_limit(0);
  return fitted;
}

struct Exhaustive {
  std::int64_t largest = 0, steps = 0, failures = 0;
  double seconds = 0;
};

// Bytes never fall as a batch grows, so that halving tries all sizes.
Exhaustive search(Trainer& trainer, const Subject& subject, std::int64_t limit) {
  const std::int64_t begin_ns = monotonic_ns();
  Exhaustive found;
  std::int64_t beyond = kMost + 1;
  while (beyond - found.largest > 1) {
    const std::int64_t middle = (found.largest + beyond) / 2;
    ++found.steps;
    if (fits(trainer, subject, middle, limit)) {
      found.largest = middle;
    } else {
      beyond = middle;
      ++found.failures;
    }
  }
  found.seconds = seconds_since(begin_ns);
  return found;
}

void compare(const Subject& subject) {
  Trainer trainer = trainer_of(subject);
  const std::int64_t limit = tensor_bytes() + (subject.limit_mib << 20);
  const BatchPlan plan = plan_batch_size(trainer, subject.batch_of, {.max_batch_size = kMost, .memory_limit = limit});
  const Exhaustive best = search(trainer, subject, limit);
  const auto failures =
      std::count_if(plan.probes.begin(), plan.probes.end(), [](const BatchProbe& probe) { return probe.ran_out; });
  double rate = plan.samples_per_second.value_or(0);
  std::string sizes;
  for (const BatchProbe& probe : plan.probes) {
    sizes += fmt::format("{}{}", sizes.empty() ? "" : " ", probe.batch_size);
    if (!plan.samples_per_second && !probe.ran_out) rate = static_cast<double>(probe.batch_size) / probe.step_s;
  }
  const double epoch_s = static_cast<double>(kEpochSamples) / rate;
  fmt::print(
      "{:30} | {:4} MiB | {:3} of {:3} {:5.1f} % | {} probes ({}), {} failed, {:5.1f} s | {:2} probes, {} failed, "
      "{:5.1f} s | {:7.1f} samples/s, {:3.0f} % of the limit | T-14 {:4.1f} % of {:.0f} s\n",
      subject.name, subject.limit_mib, plan.largest_batch_size, best.largest,
      100.0 * static_cast<double>(plan.largest_batch_size) / static_cast<double>(best.largest), plan.probes.size(),
      sizes, failures, plan.search_s, best.steps, best.failures, best.seconds, rate, 100 * plan.memory_fraction,
      100 * plan.search_s / (plan.search_s + epoch_s), plan.search_s + epoch_s);
  fmt::print("{:30}   takes {}: {}\n", "", plan.batch_size, plan.reason);
}

}  // namespace

int main(int argc, char** argv) {
  apply_compute_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  at::manual_seed(1);
  if (const Applied watched = watch_tensor_memory(); !watched.reason.empty()) {
    fmt::print("tensors are not counted: {}\n", watched.reason);
    return 1;
  }
  fmt::print(
      "network | limit | plan's largest of the largest by real steps | plan | exhaustive | at the plan's size | "
      "search as a part of an epoch of {} samples with it\n",
      kEpochSamples);
  const std::function<Subject()> subjects[] = {resnet18, vit, [] { return attention(128); },
                                               [] { return attention(512); }, buckets};
  for (const auto& make : subjects) compare(make());
  return 0;
}
