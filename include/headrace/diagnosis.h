// What limits a job, and what to do about it. Pure functions of their arguments, safe to call from any thread.
#pragma once

#include <headrace/resource_verdict.h>
#include <headrace/time_split.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

enum class Bound { compute, data, unknown };
const char* to_string(Bound bound) noexcept;

struct Finding {
  std::string code;      // Stable: "data_loading_slow", "high_memory", "speed_degraded", ...
  std::string sentence;  // What was seen, with its numbers.
  // A change that the advice names. What became of it decides what the advice still says (advice_left()).
  struct Suggestion {
    std::string sentence;           // "Try optimizer.fused = true."
    std::vector<std::string> keys;  // The settings that it is about; empty: about none.
  };
  std::string advice;                   // With suggestions: their sentences, one after the other.
  std::vector<Suggestion> suggestions;  // Empty: the advice names no setting.
};

// When a finding is made. A value equal to its threshold makes none. Each is finite and at least 0, speed_steps 1.
struct FindingThresholds {
  double data_loading_ratio = 0.3;            // (Data wait + transfer) / (forward + backward + optimizer).
  std::int64_t memory_bytes = 8'000'000'000;  // 8 GB.
  double speed_ratio = 0.8;                   // Mean speed of the last speed_steps steps / mean speed of all.
  std::int64_t speed_steps = 10;
  double optimizer_share = 0.2;    // Of a step.
  double unaccounted_share = 0.1;  // Of a step: in no part.
};

// What batches took, as somebody measured them.
struct BottleneckInput {
  std::int64_t batches = 0;                   // Above 0.
  double data_loading_s = 0;                  // Of all batches together, as compute_s.
  double compute_s = 0;                       // Forward, backward and optimizer.
  std::optional<std::int64_t> mean_memory{};  // Bytes; nullopt: unavailable.
  std::vector<double> speeds{};               // Samples a second, one a batch, in their order.
  FindingThresholds thresholds{};
};
// Those of data_loading_slow, high_memory and speed_degraded that hold, in this order; each with its advice. The rules
// of diagnose() for figures that are not a trace's. Error{invalid_argument}: no batch, or a threshold or figure that is
// not finite or below 0.
std::vector<Finding> identify_bottlenecks(const BottleneckInput& input);

// What else the diagnosis may know; nullopt: unavailable.
struct DiagnosisInput {
  TimeSplit split;
  std::int64_t samples_per_step = 0;    // Must be set.
  std::optional<double> loader_busy_s;  // CPU seconds of the loader's workers over the same steps.
  // Mean step seconds without the data wait, measured while no worker loads.
  std::optional<double> undisturbed_step_s;
  int num_workers = 1;
  int compute_threads = 1;
  int cores = 1;
  std::optional<std::int64_t> mean_memory;  // Bytes.
  std::optional<std::int64_t> peak_memory;  // Bytes; judged when mean_memory is unavailable.
  std::optional<double>
      free_data_step_s;  // Mean step seconds with the data replaced by one cached batch, when measured.
  FindingThresholds thresholds;
  bool has_fused_optimizer = false;            // optimizer.fused = true is in force.
  std::optional<ResourceFigures> resources{};  // What else was recorded of these steps.
};

struct Diagnosis {
  Bound bound = Bound::compute;
  double samples_per_second = 0;
  double predicted_free_data_gain = 0;            // Step time now / predicted step time with free data - 1.
  std::optional<double> measured_free_data_gain;  // The same, measured.
  std::string sentence;                           // "compute-bound: 96 % of a step is forward and backward; ..."
  std::vector<Finding> findings;                  // One for each rule that holds.
  std::optional<ResourceVerdict> resources;  // Which resource runs out first; nullopt: nothing was recorded for it.

  // What to say on one line: the verdict over resources where it names one, or where nothing else is known either.
  const std::string& verdict() const {
    return resources && (resources->first || bound == Bound::unknown) ? resources->sentence : sentence;
  }
};

// Data-bound when free data would gain at least 10 % (measured if known, else predicted). Otherwise compute-bound, but
// unknown when nothing was measured and more than half of a step lies in no part: data may be waited for there, too.
// Prediction: a step loses its data wait, and compute gets back what the loader's workers took from it: measured where
// undisturbed_step_s is known, else their core time where threads exceed cores, a lower bound. Error{invalid_argument}
// without steps, samples_per_step, cores or threads, a threshold outside its range, and as judge_resources(), whose
// first resource is a finding, too: "storage_limits", "decode_limits", and so on.
Diagnosis diagnose(const DiagnosisInput& input);
// {"bound", "samples_per_second", ..., "findings"} on one line; numbers that nobody knows are null.
std::string json_text(const Diagnosis& diagnosis);

}  // namespace headrace
