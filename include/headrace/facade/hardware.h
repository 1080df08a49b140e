// Settings of the CPU and the GPU with the values of published examples, under the names of the Python package
// performance_optimization.
#pragma once

#include <headrace/error.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::facade {

// What one of the functions below has set, and the way back. Not thread-safe. Its destructor undoes nothing.
class HardwareSettings {
 public:
  struct Changes;

  explicit HardwareSettings(std::unique_ptr<Changes> changes);
  ~HardwareSettings();
  HardwareSettings(HardwareSettings&& other) noexcept;
  HardwareSettings& operator=(HardwareSettings&& other) noexcept;

  // In the order in which they were set: what was asked for, what is in force (read back), and why they differ, or a
  // remark. "unavailable": there is no such setting here; "none": this engine has no call for it.
  const std::vector<Applied>& settings() const;
  // By its key. Error{invalid_argument} lists those there are.
  const Applied& operator[](std::string_view key) const;
  // Puts back what was there before, the last one first. A second call does nothing.
  void undo();

 private:
  std::unique_ptr<Changes> changes_;
};

// compute_threads: as many as this process may use cores, by its affinity and its container's quota; requested are the
// machine's. As every such call, it leaves one inter-op thread, which is not undone. child_threads: OMP_NUM_THREADS,
// MKL_NUM_THREADS and OPENBLAS_NUM_THREADS of the same value, for processes that start from here on. Reads and writes
// the environment, so no other thread may meanwhile.
HardwareSettings optimize_cpu_settings();

// Of the first CUDA device: cudnn_deterministic off, cudnn_benchmark on, tf32_cudnn on; max_split_size_mb 128, by the
// allocator's own call; empty_cache, which cannot be undone. memory_fraction 0.9 is not applied: LibTorch has its call
// in its CUDA library alone. Without CUDA it changes nothing, and every reason says so.
HardwareSettings optimize_cuda_settings();

// Of the first CUDA device: tf32_matmul and tf32_cudnn on where its compute capability is 8.0 or later,
// cudnn_deterministic off, cudnn_benchmark on. power_mode "high" is not applied: the Python package sets it, where it
// is permitted. Without CUDA as above.
HardwareSettings optimize_gpu();

struct GpuOptimizationConfig {
  double batch_size_multiplier = 0.8;
  bool enable_amp = false;
  std::int64_t num_workers = 4;
  bool pin_memory = true;

  bool operator==(const GpuOptimizationConfig&) const = default;
};

struct GpuDescription {
  std::string name;  // "NVIDIA GeForce RTX 4090".
  int capability_major = 0, capability_minor = 0;
  std::int64_t memory = 0;  // Bytes.
};

//   its name contains                                            | batch_size_multiplier | enable_amp | num_workers
//   RTX 4090, RTX 4080                                           | 1.5                   | true       | 16
//   RTX 3090, RTX 3080                                           | 1.2                   | true       | 12
//   RTX 3070, RTX 3060                                           | 1.0                   | true       | 8
//   none of these: compute capability 8.0 and 40 x 10^9 bytes    | 1.5                   | true       | 16
//   none of these: compute capability 7.0 and 14 x 10^9 bytes    | 1.0                   | true       | 8
//   another                                                      | 0.8                   | false      | 4
//
// literal: without the two rows by compute capability and memory.
GpuOptimizationConfig gpu_optimization_config(const GpuDescription& gpu, bool literal = false);
// Of the first GPU by the driver's order, which CUDA_VISIBLE_DEVICES does not change. nullopt: no CUDA. Opens CUDA's
// half of the engine, once a process.
std::optional<GpuOptimizationConfig> get_gpu_optimization_config(bool literal = false);

}  // namespace headrace::facade
