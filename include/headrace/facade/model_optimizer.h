// A model set up as a PerformanceConfig says, under the name of the Python package performance_optimization.
#pragma once

#include <headrace/error.h>
#include <headrace/facade/performance_config.h>
#include <headrace/model_state.h>
#include <headrace/trainer.h>

#include <string>
#include <vector>

namespace headrace::facade {

// enable_memory_format_optimization lays 4-D parameters out as memory_format, with the same values. What is not
// applied, and why, report() says: C++ has no torch.compile, a forward of one's own cannot be recomputed from outside,
// and LibTorch's scaled_dot_product_attention chooses its kernel by itself. Not thread-safe.
class ModelOptimizer {
 public:
  explicit ModelOptimizer(PerformanceConfig config = PerformanceConfig());

  // The same model, set up in place: before an optimizer is made, whose state lies as the parameters do.
  ModelState optimize_model(ModelState model);
  // Of a trainer's model, with its gradients and optimizer state, and the images that it transfers. Between two steps.
  void optimize_model(Trainer& trainer);

  bool compile_enabled() const { return false; }  // Nothing compiles here.
  // By setting requested, applied ("none": it is not) and why not.
  std::vector<Applied> report() const;

 private:
  PerformanceConfig config_;
  std::string why_not_laid_out_;
};

}  // namespace headrace::facade
