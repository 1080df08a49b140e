// Scopes and batches of a training loop under the names of the Python package performance_optimization: both method
// sets of the published examples in one class.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/profile_summary.h>
#include <headrace/time_split.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::facade {

// The most that a scope of one name kept, and held at once, of tensors on the CPU, in bytes. nullopt: nobody measured.
struct ScopeMemory {
  std::optional<std::int64_t> net_bytes{}, peak_bytes{};
};

struct ProfilingSummary {
  ProfileSummary times;                         // total_operations, total_duration_s, operations.
  std::map<std::string, ScopeMemory> memory{};  // By name.
  std::string memory_reason{};                  // Why memory is unavailable; empty: it is not.
  std::int64_t dropped_operations = 0;          // Which were too many to keep.

  // On several lines, with the keys that Python's has, of memory the CPU's two: total_operations, total_duration, ...
  std::string to_json() const;
};

// A scope that is over, and those that lay within it on its thread, in the order in which they began.
struct Operation {
  std::string name;
  double seconds = 0;
  bool failed = false;  // An exception left it.
  std::vector<Operation> children{};
};

// What nobody recorded is 0; recorded_batches and memory_available say whether it was.
struct PerformanceReport {
  struct Breakdown {
    double data_loading = 0, forward_pass = 0, backward_pass = 0, optimizer = 0;  // Mean seconds.
  };
  double total_training_time = 0;                              // Seconds.
  double average_training_speed = 0, peak_training_speed = 0;  // Samples a second.
  double average_memory_usage = 0, peak_memory_usage = 0;      // 10^9 bytes.
  Breakdown time_breakdown{};
  std::int64_t recorded_batches = 0;
  bool memory_available = false;

  std::string to_json() const;  // All of it, on several lines.
};

//   hr::facade::PerformanceProfiler profiler;
//   {
//     const auto scope = profiler.profile("training_step");
//     ...
//   }
//   profiler.get_profile_summary();
//
//   profiler.start_batch_timer();
//   ...
//   profiler.record_batch_metrics(batch_size, forward_time, backward_time, optimizer_time);
//   profiler.get_performance_report();
//   profiler.identify_bottlenecks();
//
// Scopes may be of any thread, and the newest 65,536 that are over are kept; batches are for one thread at a time.
class PerformanceProfiler {
 public:
  using Clock = std::function<double()>;  // Seconds, for tests.

  // enable_profiling = false: a scope costs a call and is not recorded. enable_memory_profiling: scopes count what
  // their own thread allocates for tensors on the CPU, too, which takes the place of a PyTorch profiler on that thread.
  explicit PerformanceProfiler(bool enable_profiling = true, bool enable_memory_profiling = false, Clock clock = {});
  ~PerformanceProfiler();
  PerformanceProfiler(PerformanceProfiler&& other) noexcept;

  // One operation, from its construction to its end on the same thread, before the profiler's. Where a headrace::Trace
  // records, it is a span of that, too.
  class [[nodiscard]] Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class PerformanceProfiler;
    struct Open;
    explicit Scope(std::unique_ptr<Open> open);

    std::unique_ptr<Open> open_;  // Null: nothing is recorded.
  };
  Scope profile(const std::string& name);

  // total_duration_s: seconds with any scope open, nested time once, added up over threads.
  ProfilingSummary get_profile_summary() const;
  std::vector<Operation> tree() const;

  // Before a batch is asked for.
  void start_batch_timer();
  // Once after the batch's update, with the samples in it and the seconds of its parts; loading is what these leave of
  // the time since start_batch_timer(). On CUDA the parts must be waited for, or their work counts as loading; what
  // tensors hold on the first CUDA device is noted, and without CUDA no memory is. Error{invalid_argument}:
  // start_batch_timer() was not called for this batch, or a number that cannot be.
  void record_batch_metrics(std::int64_t batch_size, double forward_time, double backward_time, double optimizer_time);
  // Appends the six series of training steps that a Trace has recorded (split_time()), without a call in the loop.
  // memory_bytes: one value a step, or none.
  void take_metrics(const TimeSplit& split, std::int64_t samples_per_step,
                    const std::vector<std::int64_t>& memory_bytes = {});

  // By name one value a batch: training_speed (samples/s), memory_usage (10^9 bytes), data_loading_time,
  // forward_pass_time, backward_pass_time, optimizer_time (seconds).
  const std::map<std::string, std::vector<double>>& metrics() const;
  PerformanceReport get_performance_report() const;
  // What slows the recorded batches down, by headrace's identify_bottlenecks(); empty: nothing does, or none was
  // recorded. Errors as there.
  std::vector<Finding> identify_bottlenecks(const FindingThresholds& thresholds = {}) const;

  void clear();  // Forgets all scopes that are over, and all batches.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::facade
