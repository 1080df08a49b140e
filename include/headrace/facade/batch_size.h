// How many samples a batch should have, by a table of GPU memory or by measuring, under the names of the Python package
// performance_optimization.
#pragma once

#include <headrace/batch_planner.h>
#include <headrace/facade/training_config.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/tensor_batch.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <optional>

namespace headrace::facade {

struct MemoryRule {
  double batch_size_multiplier = 1.0;  // Of the result, which is rounded down, to no less than 1.
  // Any "x" or "l" in the name of the weights counts as the letter of a large variant, and so does that of "yolo".
  bool literal = false;
};

// The batch size by the memory of a CUDA device, at most config.batch_size.
//
//   memory, 10^9 bytes, at least | 24 | 16 | 12 |  8 |  6 | less | no CUDA
//   batch size                   | 64 | 32 | 24 | 16 | 12 |    8 |      16
//
// With CUDA it is halved, to no less than 4, where config.image_size is above 640, and once more where config.weights
// names a variant x or l: the letter of "yolov8x.pt", "yolo11l-seg.pt" or "yolov5_l.pt". Error{invalid_argument}: a
// batch size that is missing or below 1, an image size below 1, a multiplier that is not above 0 or not finite,
// or a result beyond int64.
std::int64_t batch_size_for_memory(const TrainingConfig& config, std::optional<std::int64_t> cuda_bytes,
                                   const MemoryRule& rule = {});
// The same by the first CUDA device's whole memory. Opens CUDA's half of the engine, once a process.
std::int64_t optimize_batch_size_for_memory(const TrainingConfig& config, const MemoryRule& rule = {});

// Finds the batch size of a model by a few steps of AdamW, which plan_batch_size() says more about and which are
// undone. Not thread-safe.
class BatchOptimizer {
 public:
  // `initial_batch_size` is tried first, and nothing above `max_batch_size`. `memory_limit`: bytes that tensors on the
  // CPU may hold; 0: the limit in force, else what the machine has left.
  explicit BatchOptimizer(std::int64_t initial_batch_size = 32, std::int64_t max_batch_size = 512,
                          std::int64_t memory_limit = 0);

  // The size with the best throughput among those that fit, or with a target above 0 the smallest that reaches that
  // many samples a second. A batch of n samples is that many of `batch`, from its first on and over again. Parameters,
  // buffers, gradients, the CPU's generator and whether algorithms are deterministic are as before afterwards, bit for
  // bit; the model is in training mode. Error{unsupported}: a field of samples that differ in shape, and what
  // plan_batch_size() says. Error{invalid_argument}: a batch without samples, no parameter that requires gradients, and
  // what plan_batch_size() says.
  std::int64_t optimize_batch_size(const ModelState& model, const Forward& forward, const TensorBatch& batch,
                                   double target_throughput = 0);
  // The same with the first batch of epoch 0. Between two epochs of the loader, whose next one is then the one that it
  // would have been, from its first batch on. Error{invalid_argument}: it gives no batch.
  std::int64_t optimize_batch_size(const ModelState& model, const Forward& forward, Loader& loader,
                                   double target_throughput = 0);

  // What the last search measured and why it chose; nullopt: none has ended.
  const std::optional<BatchPlan>& plan() const { return plan_; }
  void clear() { plan_.reset(); }  // Forgets the last search.

 private:
  BatchPlannerOptions options_;
  std::optional<BatchPlan> plan_;
};

}  // namespace headrace::facade
