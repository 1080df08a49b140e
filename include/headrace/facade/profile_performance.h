// Operators and memory of a training loop, profiled by one call, under the names of the Python package
// performance_optimization.
#pragma once

#include <headrace/batch.h>
#include <headrace/loader.h>
#include <headrace/model_state.h>
#include <headrace/operator_table.h>
#include <headrace/optimizer.h>
#include <headrace/profile_schedule.h>
#include <headrace/tensor_batch.h>
#include <headrace/trace_export.h>
#include <headrace/trainer.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace::facade {

struct ProfilePerformanceSettings {
  std::filesystem::path log_dir = "log/profile";  // Made if need be.
  ProfileSchedule schedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2};
  bool record_shapes = true;
  bool profile_memory = true;  // Of tensors on the CPU.
  TraceForm form = TraceForm::chrome;
};

struct ProfiledPerformance {
  std::vector<std::filesystem::path> files{};      // trace-PID-1.json and so on, one or more a window.
  std::vector<OperatorStatistics> key_averages{};  // Of the last window, by largest self_ns; empty: there was none.
};

// Calls train_step with each batch of the loader's next epoch, and writes a trace of each window: by default one of
// steps 2 to 4 and one of 7 to 9, counted from 0. What train_step throws passes through; what was recorded by then is
// written. Lines of Python's stack (with_stack) there are none. Errors as headrace::Profile's, the loader's and
// export_trace()'s.
ProfiledPerformance profile_performance(const std::function<void(const Batch&)>& train_step, Loader& loader,
                                        const ProfilePerformanceSettings& settings = {});

// Runs forward(batch) and its loss's backward once, prints on stdout which operators keep most memory, and returns all
// of them, that with most bytes first: of tensors on the CPU, as nobody records a device's. Gradients are added to the
// model's, as by any backward. Errors as headrace::Profile's.
std::vector<OperatorStatistics> profile_memory(const Forward& forward, const TensorBatch& batch,
                                               std::size_t row_limit = 10);

// A line for each of the first `row_limit`, below a head: calls, microseconds, bytes ("unavailable": not recorded).
std::string table(std::span<const OperatorStatistics> operators, std::size_t row_limit = 100);

// In 10^9 bytes.
struct MemoryUsage {
  struct Stats {
    double allocated = 0, reserved = 0, max_allocated = 0, max_reserved = 0;  // As torch.cuda's of these names.
  };
  Stats memory_stats{};
  // The ten largest groups at most, the largest first, by role and module: "parameters layer4", "optimizer layer4";
  // "other" is what is allocated and in none. A piece of memory counts once, whatever views there are.
  std::vector<std::pair<std::string, double>> tensor_breakdown{};

  std::string to_json() const;  // On several lines.
};

// What lies in the memory of the first CUDA device; nullopt: there is none. Of a model and an optimizer that are left
// out, nothing is told apart; activations and batches are in "other". Opens CUDA's half of the engine, once a process.
std::optional<MemoryUsage> profile_memory_usage(const ModelState* model = nullptr, Optimizer* optimizer = nullptr);

}  // namespace headrace::facade
