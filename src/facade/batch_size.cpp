#include <ATen/ops/arange.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <headrace/facade/batch_size.h>
#include <headrace/loader.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "facade/kept_determinism.h"
#include "torch/device/accelerator.h"
#include "torch/train/memory_layout.h"

namespace headrace::facade {
namespace {

struct MemoryRow {
  std::int64_t bytes_min, batch_size;
};
constexpr std::array kByMemory{MemoryRow{24'000'000'000, 64}, MemoryRow{16'000'000'000, 32},
                               MemoryRow{12'000'000'000, 24}, MemoryRow{8'000'000'000, 16},
                               MemoryRow{6'000'000'000, 12}};
constexpr std::int64_t kSmallestGpu = 8, kWithoutCuda = 16, kHalfMin = 4, kLargeImage = 640;

bool is_digit(char letter) {
  return std::isdigit(static_cast<unsigned char>(letter)) != 0;
}

bool is_separator(char letter) {
  return letter == '-' || letter == '_' || letter == '.';
}

// Whether the letter at `place` is that of a variant, as in "yolov8x.pt", "yolo11l-seg.pt", "yolov5x6.pt", "rtdetr-l".
bool is_of_variant(std::string_view name, std::size_t place) {
  if (place > 0 && !is_digit(name[place - 1]) && !is_separator(name[place - 1])) return false;
  std::size_t behind = place + 1;
  while (behind < name.size() && is_digit(name[behind])) ++behind;
  return behind == name.size() || is_separator(name[behind]);
}

bool is_large(std::string weights, bool literal) {
  std::transform(weights.begin(), weights.end(), weights.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  std::string_view name = weights;
  if (!literal) name.remove_prefix(name.find_last_of("/\\") + 1);  // npos + 1 is 0.
  for (std::size_t i = 0; i < name.size(); ++i) {
    if ((name[i] == 'x' || name[i] == 'l') && (literal || is_of_variant(name, i))) return true;
  }
  return false;
}

std::int64_t fitting(const TrainingConfig& config, std::optional<std::int64_t> cuda_bytes, bool literal) {
  if (!cuda_bytes) return kWithoutCuda;
  const auto* const row = std::find_if(kByMemory.begin(), kByMemory.end(),
                                       [&](const MemoryRow& each) { return *cuda_bytes >= each.bytes_min; });
  std::int64_t size = row == kByMemory.end() ? kSmallestGpu : row->batch_size;
  if (config.image_size > kLargeImage) size = std::max(kHalfMin, size / 2);
  if (is_large(config.weights, literal)) size = std::max(kHalfMin, size / 2);
  return size;
}

void check_batch(const TensorBatch& batch) {
  if (batch.size() < 1) {
    fail(ErrorCode::invalid_argument, "facade: batch size: wanted a batch of at least one sample, found none");
  }
  for (const TensorBatch::Field& field : batch.fields()) {
    if (!field.offsets.defined() && !field.shapes.defined()) continue;
    fail(ErrorCode::unsupported, "facade: batch size: wanted fields of samples of one shape, found {}", field.name);
  }
}

// `samples` of them, over again from the first on.
TensorBatch repeated(const TensorBatch& batch, std::int64_t samples) {
  const auto taken = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return at::Tensor{};
    return tensor.index_select(0, at::arange(samples, tensor.options().dtype(at::kLong)).remainder(batch.size()));
  };
  TensorBatch some;
  for (const TensorBatch::Field& field : batch.fields()) {
    some.add({.name = field.name, .values = taken(field.values), .present = taken(field.present)});
  }
  some.valid = taken(batch.valid);
  return some;
}

std::vector<std::pair<std::string, at::Tensor>> trained_of(const ModelState& model) {
  std::vector<std::pair<std::string, at::Tensor>> trained;
  for (const auto& [name, parameter] : model.parameters) {
    if (parameter.requires_grad()) trained.emplace_back(name, parameter);
  }
  if (trained.empty()) {
    fail(ErrorCode::invalid_argument, "facade: wanted a model with parameters that require gradients, found none");
  }
  return trained;
}

}  // namespace

std::int64_t batch_size_for_memory(const TrainingConfig& config, std::optional<std::int64_t> cuda_bytes,
                                   const MemoryRule& rule) {
  if (!config.batch_size || *config.batch_size < 1) {
    fail(ErrorCode::invalid_argument, "facade: config.batch_size: wanted a whole number of at least 1, found {}",
         config.batch_size ? std::to_string(*config.batch_size) : "none");
  }
  if (config.image_size < 1) {
    fail(ErrorCode::invalid_argument, "facade: config.image_size: wanted a whole number of at least 1, found {}",
         config.image_size);
  }
  if (!(rule.batch_size_multiplier > 0) || !std::isfinite(rule.batch_size_multiplier)) {
    fail(ErrorCode::invalid_argument, "facade: batch_size_multiplier: wanted a number above 0, and finite, found {}",
         rule.batch_size_multiplier);
  }
  const std::int64_t size = std::min(fitting(config, cuda_bytes, rule.literal), *config.batch_size);
  const double scaled = std::floor(static_cast<double>(size) * rule.batch_size_multiplier);
  if (!(scaled < 0x1p63)) {
    fail(ErrorCode::invalid_argument,
         "facade: batch_size_multiplier: wanted a batch size below 2^63, found {} times {}", size,
         rule.batch_size_multiplier);
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(scaled));
}

std::int64_t optimize_batch_size_for_memory(const TrainingConfig& config, const MemoryRule& rule) {
  std::string reason;
  std::optional<std::int64_t> bytes;
  if (accelerator_of(at::Device(at::kCUDA, 0), reason) != nullptr) {
    bytes = static_cast<std::int64_t>(c10::getDeviceAllocator(c10::DeviceType::CUDA)->getMemoryInfo(0).second);
  }
  return batch_size_for_memory(config, bytes, rule);
}

BatchOptimizer::BatchOptimizer(std::int64_t initial_batch_size, std::int64_t max_batch_size, std::int64_t memory_limit)
    : options_{
          .initial_batch_size = initial_batch_size, .max_batch_size = max_batch_size, .memory_limit = memory_limit} {}

std::int64_t BatchOptimizer::optimize_batch_size(const ModelState& model, const Forward& forward,
                                                 const TensorBatch& batch, double target_throughput) {
  plan_.reset();
  check_batch(batch);
  const KeptDeterminism determinism;
  TrainOptions as_now;
  as_now.deterministic = determinism.is_on();
  Trainer trainer(model, Optimizer(trained_of(model), OptimizerOptions{}), {}, as_now, {}, 1);
  BatchPlannerOptions options = options_;
  options.target_throughput = target_throughput;
  const BatchOf batch_of = [&](std::int64_t samples) -> BoundForward {
    return [&forward, some = repeated(batch, samples)] { return forward(some); };
  };
  plan_ = plan_batch_size(trainer, batch_of, options);
  return plan_->batch_size;
}

std::int64_t BatchOptimizer::optimize_batch_size(const ModelState& model, const Forward& forward, Loader& loader,
                                                 double target_throughput) {
  plan_.reset();
  const std::int64_t next = loader.next_epoch_index();
  std::optional<Batch> host;
  {
    Epoch epoch = loader.epoch(0);  // Ends here, so that nothing is loaded beside the probes.
    host = epoch.next();
  }
  loader.start_at(next);
  if (!host) fail(ErrorCode::invalid_argument, "facade: batch size: wanted a loader that gives a batch, found none");
  return optimize_batch_size(model, forward, tensors_of(*host, MemoryFormat::contiguous), target_throughput);
}

}  // namespace headrace::facade
