#include <ATen/ops/batch_norm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <headrace/activation_checkpointing.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "torch/model/recomputation_cases.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

class CheckpointFunction : public OneThread {};

// A linear layer, a batch normalisation and a dropout, as a user's own module has them.
class Block {
 public:
  Block() {
    at::manual_seed(21);
    weight = at::randn({8, 8}).mul_(0.3).requires_grad_();
    scale = at::ones({8}).requires_grad_();
    shift = at::zeros({8}).requires_grad_();
    mean = at::zeros({8});
    variance = at::ones({8});
    batches = at::zeros({}, at::kLong);
  }

  at::Tensor operator()(const at::Tensor& input) {
    ++calls;
    batches.add_(1);
    const at::Tensor hidden = at::batch_norm(at::linear(input, weight), scale, shift, mean, variance, /*training=*/true,
                                             /*momentum=*/0.1, /*eps=*/1e-5, /*cudnn_enabled=*/false);
    return at::relu(at::dropout(hidden, 0.4, /*train=*/true));
  }
  Tensors buffers() const { return {mean, variance, batches}; }

  at::Tensor weight, scale, shift, mean, variance, batches;
  int calls = 0;
};

at::Tensor through(Block& block, const at::Tensor& input) {
  return checkpoint([&block](const at::Tensor& given) { return block(given); }, input, {.buffers = block.buffers()});
}

// What two steps give and leave behind; the second one begins with the buffers of the first.
Values two_steps(bool is_checkpointed, Arithmetic arithmetic) {
  Block block;
  Values values;
  at::manual_seed(22);
  for (const char* step : {"first ", "second "}) {
    const std::string of(step);
    const at::Tensor input = at::randn({16, 8}).requires_grad_();
    at::Tensor loss;
    {
      const Bf16 scope(arithmetic);
      loss = (is_checkpointed ? through(block, input) : block(input)).to(at::kFloat).square().mean();
    }
    loss.backward();
    values[of + "loss"] = loss.detach();
    values[of + "input"] = input.grad();
    values[of + "weight"] = block.weight.grad().clone();
    values[of + "scale"] = block.scale.grad().clone();
    values[of + "shift"] = block.shift.grad().clone();
    values[of + "mean"] = block.mean.clone();
    values[of + "variance"] = block.variance.clone();
    values[of + "batches"] = block.batches.clone();
    values[of + "draw"] = at::rand({4});
  }
  EXPECT_EQ(block.calls, is_checkpointed ? 4 : 2);
  return values;
}

TEST_F(CheckpointFunction, GivesTheBitsOfThePlainCallAndItsBuffersAndDraws) {
  for (const Arithmetic arithmetic : {Arithmetic::float32, Arithmetic::bf16}) {
    expect_bits(two_steps(false, arithmetic), two_steps(true, arithmetic),
                arithmetic == Arithmetic::bf16 ? "bf16" : "float32");
  }
}

// The first of two results has no gradient, and the loss takes the second alone.
Tensors looked_up(const Tensors& inputs) {
  const at::Tensor rows = at::embedding(inputs[0], inputs[1]);
  return {inputs[1].add(1), rows.mul(inputs[2]), rows.exp()};
}

TEST_F(CheckpointFunction, TakesAndGivesSeveralTensorsOfWhichSomeHaveNoGradient) {
  const at::Tensor table = at::randn({5, 3}).requires_grad_(), factor = at::randn({3}).requires_grad_();
  const at::Tensor places = at::tensor({0, 3, 3}, at::kLong);
  const Tensors plain = looked_up({table, places, factor});
  const Tensors wanted = torch::autograd::grad({plain[1].sum()}, {table, factor});
  const Tensors found = checkpoint(looked_up, {table, places, factor});
  EXPECT_TRUE(found[0].equal(plain[0]));
  EXPECT_FALSE(found[0].requires_grad());
  EXPECT_TRUE(found[2].equal(plain[2]));
  const Tensors gradients = torch::autograd::grad({found[1].sum()}, {table, factor});
  EXPECT_TRUE(gradients[0].equal(wanted[0]));
  EXPECT_TRUE(gradients[1].equal(wanted[1]));
}

TEST_F(CheckpointFunction, MayStandWithinAnother) {
  Block inner, plain;
  const at::Tensor input = at::randn({16, 8});
  const auto loss_of_block = [&input](Block& block, const auto& pass) {
    at::manual_seed(23);
    return pass(block, input).square().sum();
  };
  loss_of_block(plain, [](Block& block, const at::Tensor& given) { return block(given).mul(2); }).backward();
  const auto twice = [](Block& block, const at::Tensor& given) {
    const auto outer = [&block](const at::Tensor& of) { return through(block, of).mul(2); };
    return checkpoint(outer, given, {.buffers = block.buffers()});
  };
  loss_of_block(inner, twice).backward();
  EXPECT_TRUE(inner.weight.grad().equal(plain.weight.grad()));
  EXPECT_TRUE(inner.mean.equal(plain.mean));
  EXPECT_EQ(inner.calls, 3);  // Forward, the outer one's second call, the inner one's in the backward of that.
}

TEST_F(CheckpointFunction, KeepsNothingButItsInputs) {
  const at::Tensor weight = at::randn({64, 64}).requires_grad_(), input = at::randn({64, 64});
  const auto deep = [weight](const at::Tensor& given) {
    at::Tensor hidden = given;
    for (int i = 0; i < 8; ++i) hidden = at::relu(at::linear(hidden, weight));
    return hidden;
  };
  const auto kept_by = [&](const auto& pass) {
    const TensorAllocations counted;
    const at::Tensor output = pass();
    return TensorAllocations::bytes().value();
  };
  const auto one = static_cast<std::int64_t>(input.nbytes());
  EXPECT_GE(kept_by([&] { return deep(input); }), 8 * one);
  EXPECT_LT(kept_by([&] { return checkpoint(deep, input); }),
            2 * one + (1 << 14));  // The output, the generator's state.
}

TEST_F(CheckpointFunction, IsAPlainCallWhereNoGraphIsRecorded) {
  Block block;
  const c10::AutoGradMode no_graph(false);
  EXPECT_FALSE(through(block, at::randn({16, 8}).requires_grad_()).requires_grad());
  EXPECT_EQ(block.calls, 1);
}

TEST_F(CheckpointFunction, RefusesACapturedTensorThatHasAGraph) {
  const at::Tensor scale = at::ones({3}).requires_grad_(), doubled = scale.add(scale);
  const auto scaled = [doubled](const at::Tensor& given) { return given.mul(doubled); };
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { checkpoint(scaled, at::ones({3})); }),
      HasSubstr("model: checkpoint(): wanted every tensor that has a graph among the inputs, found another one, "
                "made by AddBackward0"));
}

TEST_F(CheckpointFunction, RefusesWhatIsUndefinedAndOtherResultsTheSecondTime) {
  const auto same = [](const Tensors& inputs) { return inputs; };
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { checkpoint(same, Tensors{}); }),
              HasSubstr("wanted at least one input, found none"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         checkpoint(same, Tensors{at::ones({1}), at::Tensor()});
                       }),
              HasSubstr("input 1 is undefined"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { checkpoint([](const at::Tensor&) { return at::Tensor(); }, at::ones({1})); }),
              HasSubstr("result 0 is undefined"));
  int calls = 0;
  const auto fewer = [&calls](const Tensors& inputs) {
    return ++calls == 1 ? Tensors{inputs[0].exp(), inputs[0].exp()} : Tensors{inputs[0].exp()};
  };
  const Tensors results = checkpoint(fewer, Tensors{at::ones({1}).requires_grad_()});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { results[0].backward(); }), HasSubstr("found 1 of 2"));
}

TEST_F(CheckpointFunction, RefusesAnInputThatWasChangedInPlaceSince) {
  const at::Tensor leaf = at::ones({3}).requires_grad_(), input = leaf.mul(2);
  const at::Tensor output = checkpoint([](const at::Tensor& given) { return given.add(1); }, input);
  input.mul_(3);  // No node of the plain call reads it in its backward.
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST_F(CheckpointFunction, HasNoSecondDerivative) {
  const at::Tensor input = at::ones({3}).requires_grad_();
  const at::Tensor output = checkpoint([](const at::Tensor& given) { return given.exp(); }, input);
  EXPECT_THAT(
      error_of(ErrorCode::unsupported,
               [&] { torch::autograd::grad({output.sum()}, {input}, {}, std::nullopt, /*create_graph=*/true); }),
      HasSubstr("checkpoint() has no second derivative"));
}

}  // namespace
}  // namespace headrace
