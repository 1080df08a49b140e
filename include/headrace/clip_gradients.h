// Clipping of gradients once an update: by norm, by value, or by the ratio of gradient to weight.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/options/train.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// None of max_norm, value and ratio is below 0, and at most one above; none above: gradients are measured, not clipped.
struct ClipOptions {
  double max_norm = 0.0;  // As torch.nn.utils.clip_grad_norm_: gradients * min(1, max_norm / (norm + 1e-6)).
  GradNormType norm_type = GradNormType::l2;  // Of the report, too. With ratio: l2.
  double value = 0.0;                         // As torch.nn.utils.clip_grad_value_.
  // Adaptive: the L2 norm of a unit's gradient is at most `ratio` times that of its weights, which count as at least
  // 1e-3. A unit is a slice of the first axis, or all of a tensor of less than two axes (A. Brock and others,
  // "High-performance large-scale image recognition without normalization", 2021; they leave the last layer out).
  double ratio = 0.0;
};

// The clipping of a training run. Error{invalid_argument}: more than one, a limit below 0 or NaN, or a key without
// effect.
ClipOptions clip_options(const TrainOptions& options);

// Which parameters have one norm, for clip_gradients(): equal numbers, parameter by parameter. `names` are those of
// ModelState, and a layer is what stands before their last dot; `groups` the optimizer's group of each. Empty: all.
std::vector<std::size_t> clip_parts(GradNormPer per, const std::vector<std::string>& names,
                                    const std::vector<std::size_t>& groups);

// Norms are of all gradients together, without the loss scale, of the type that the options name. Of an update on a
// device, where nobody reads the gradients once more, norm_after is norm_before unless all have one norm.
struct ClipReport {
  double norm_before = 0.0;
  double norm_after = 0.0;
  std::int64_t clipped = 0;  // Parts, tensors (by value) or units (by ratio) that were above their limit.
  // false: some gradient is infinite or NaN, or the sum of its squares is beyond double, which float32 cannot reach;
  // and all are as they were.
  bool finite = true;
};

// Multiplies the gradients of `parameters` in place by `factor`, which takes a loss scale off, and clips them. With
// max_norm each of the `parts` is clipped by its own norm; empty: all together. Parameters without a gradient count for
// nothing. Gradients below the limit (with max_norm: of a norm up to max_norm - 1e-6, as its formula has it) keep their
// bits where the factor is 1; norms are summed in double, so that they are right beyond float32. Reads the gradients
// once and writes those once that change; off the CPU a few scalars are read by the host, as many for any number of
// parameters. Error{invalid_argument}, before anything changes: options that are none, another number of parts than of
// parameters, a gradient that is sparse or complex.
ClipReport clip_gradients(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                          const ClipOptions& options, double factor = 1.0);

}  // namespace headrace
