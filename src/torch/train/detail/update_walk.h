// Updates of many tensors in one walk through memory: what `fused` is for AdamW, Adam and RMSprop.
#pragma once

#include <headrace/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "torch/train/update_kernels.h"

namespace headrace {

// An update of one parameter at learning rate `lr`; it and its gradient are dense float32 on the CPU. Of two with the
// same `like`, options are the same.
struct Updated {
  const at::Tensor& parameter;
  const at::Tensor& gradient;
  std::array<const at::Tensor*, 4> state;  // In the order of adam_state() or rmsprop_state(); nullptr beyond these.
  float* average;                          // Laid as the parameter; nullptr: none.
  double lr, gradient_factor;
  std::size_t like;
};

class UpdateWalk {
 public:
  UpdateWalk(const UpdateExtras& extras, std::size_t parameters);

  // Whether such options have it for their implementation.
  static bool is_for(const OptimizerOptions& options) noexcept;
  // Takes it and counts its step; its tensors must stay until run(). False, and nothing is done: the parameter does not
  // fill one piece of memory or is negated when read, or the state is laid otherwise than it.
  bool add(const Updated& updated, const OptimizerOptions& options);
  // Makes all updates. The bits are the same with any number of threads.
  void run() const;

 private:
  struct Segment {
    update_kernels::Arrays arrays;
    update_kernels::Step step;
    bool rmsprop;
  };
  // What steps of the same options and count share, whatever their rates and factors.
  struct Shared {
    update_kernels::Step step{};  // gradient_factor is the sign; without shrink and step_size.
    std::size_t like = 0;
    float count = std::numeric_limits<float>::quiet_NaN();  // Of no step yet.
    std::array<double, 2> betas{};
    double mean_correction = 1;  // Divides the rate.
  };
  void run(std::int64_t begin, std::int64_t end) const;  // Of the elements of all segments, one behind the other.
  void share(const OptimizerOptions& options, std::size_t like, float count);
  void set_step(Segment& segment, const Updated& updated, const OptimizerOptions& options, float count);

  UpdateExtras extras_;
  std::vector<Segment> segments_;
  std::vector<std::int64_t> ends_;  // Elements up to and with each segment.
  Shared shared_;                   // Of the last set_step().
  std::vector<at::Tensor> laid_;    // Gradients laid as their parameters.
};

}  // namespace headrace
