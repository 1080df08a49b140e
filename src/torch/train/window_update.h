// The update at the end of a window: clipping, the optimizer's arithmetic and the averages, in one walk over memory
// where the optimizer has that.
#pragma once

#include <headrace/clip_gradients.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>
#include <headrace/options/train.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch/tensor/safetensors.h"
#include "torch/train/weight_average.h"

namespace headrace {

// Lists are kept from update to update, until the optimizer has other parameters. Refers to what it is made of. Not
// thread-safe.
class WindowUpdate {
 public:
  // `average`: nullptr where none is kept. Error{invalid_argument}: the clips of `options` contradict each other.
  WindowUpdate(const ModelState& model, Optimizer& optimizer, const TrainOptions& options, WeightAverage* average);

  // Those of the model that the optimizer updates, in the model's order.
  const NamedTensors& parameters();
  std::vector<at::Tensor> gradients();  // Of those that have one.
  bool clips() const { return clip_.max_norm > 0 || clip_.value > 0 || clip_.ratio > 0; }

  // Multiplies the gradients with `factor`, which takes a loss scale off and makes the mean of a window. In place where
  // `external`, that is another than the optimizer steps, or where the optimizer does not walk; else step() does it.
  void multiply(double factor, bool external);
  void multiply_now(double factor);  // In place.
  // As multiply(), with clipping. Where the report says that they are not finite, nothing was done.
  ClipReport clip(double factor, bool external);
  // The optimizer's step. With `average_decay` the averages of its parameters move, too.
  void step(const std::function<double(double)>& scheduled, std::optional<double> average_decay);

  // All of the update by operators that read nothing on the host: multiplies the gradients with `factor`, clips them by
  // norm or value, and makes the optimizer's step with UpdateExtras::rates, unless `checks` and a gradient is not
  // finite, or `is_left_out`, a scalar float32, is 1. All averages move where `average_weight` is defined. Returns
  // DeviceClip::figures.
  at::Tensor step_by_operators(double factor, bool checks, const at::Tensor& rates, const at::Tensor& average_weight,
                               const at::Tensor& is_left_out = {});
  // Of a place in these figures, as the last step_by_operators() counted them; empty: there is none such.
  std::string gradient_at(double place) const;

 private:
  void follow_optimizer();
  bool in_place(bool external) const;

  const ModelState& model_;
  Optimizer& optimizer_;
  const GradNormPer norm_per_;
  const ClipOptions clip_;
  WeightAverage* const average_;
  // Of the optimizer's parameters, in their order.
  std::vector<at::Tensor> parameters_, averages_;
  std::vector<std::size_t> parts_;
  const void* made_of_ = nullptr;  // Where the optimizer's list lay, and how many groups it had.
  std::size_t groups_ = 0;
  NamedTensors in_model_order_;
  std::vector<std::size_t> with_gradients_;  // Places in the optimizer's list.
  std::vector<double> factors_;              // That step() multiplies with; empty: 1.
};

}  // namespace headrace
