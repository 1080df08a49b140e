// From a trace to where the time went, what limits the job, and a report. Pure functions of their arguments: no clock,
// no file, no state; safe to call from any thread.
#pragma once

#include <headrace/error.h>
#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

// Seconds of each part, over `steps` steps. `other` is what no part covers: total - the five.
struct TimeSplit {
  std::int64_t steps = 0;
  double total_s = 0;  // Sum of the step spans.
  double data_wait_s = 0;
  double transfer_s = 0;
  double forward_s = 0;
  double backward_s = 0;
  double optimizer_s = 0;
  double other_s = 0;
  std::vector<double> step_s;  // Each step's duration, in order of their beginnings.

  struct Parts {
    double data_wait_s = 0;
    double transfer_s = 0;
    double forward_s = 0;
    double backward_s = 0;
    double optimizer_s = 0;
  };
  std::vector<Parts> parts;  // Each step's parts; as long as step_s.
};

// Divides the steps of a record (spans step::k*) by their parts; the first `skip` steps are left out as warm-up.
//
// A part counts for the step that it lies in whole, on the same thread; steps of several threads are added up. No
// nanosecond counts twice: where parts nest or overlap, it belongs to the one that began first, and of steps that
// overlap on one thread only the first is taken. A step whose parts a full ring may have overwritten is left out.
// Error{corrupt_data} when that leaves no step, or when the record contradicts itself.
TimeSplit split_time(const TraceRecord& record, std::int64_t skip = 0);
// The sums of a split whose step_s and parts hold these steps; `other` is what the parts of each step leave. As many
// parts as steps.
TimeSplit sum_steps(std::vector<double> step_s, std::vector<TimeSplit::Parts> parts);
// Adds steps and seconds of `more`; the lists of single steps stay as they are.
void add_sums(TimeSplit& sums, const TimeSplit& more);
nlohmann::ordered_json to_json(const TimeSplit& split);

// One value a step under names that other profilers use: training_speed (samples/s), memory_usage (GB, 10^9 bytes),
// data_loading_time (data wait and transfer), forward_pass_time, backward_pass_time, optimizer_time (seconds); each is
// {"unit", "values"}. `memory_bytes` holds one value a step, or is empty: "values" is null then, not 0.
nlohmann::ordered_json metric_series(const TimeSplit& split, std::int64_t samples_per_step,
                                     const std::vector<std::int64_t>& memory_bytes = {});

// The durations of all spans of one name. Percentiles interpolate between the two nearest values (NumPy's default);
// std_s is that of these spans themselves (divided by count), so it is 0 for one span.
struct SpanStatistics {
  std::string name;
  std::int64_t count = 0;
  double total_s = 0;
  double mean_s = 0;
  double std_s = 0;
  double min_s = 0;
  double max_s = 0;
  double p50_s = 0;
  double p95_s = 0;
  double p99_s = 0;
};

// A name's total_s counts a nested span of that name again, as its own call took that long. total_duration_s does not:
// it is the time during which a thread had any span open, added up over threads. Gauges are no operations.
struct ProfileSummary {
  std::int64_t total_operations = 0;
  double total_duration_s = 0;
  std::vector<SpanStatistics> operations;  // Largest total first.
};
ProfileSummary get_profile_summary(const TraceRecord& record);
nlohmann::ordered_json to_json(const ProfileSummary& summary);  // total_operations, total_duration, operations.

// What memory was for, over time: {"unit", "peak": {"at_s", "bytes"}, "at_s", "resident", "classes": {name:
// {"at_peak", "mean", "last", "values"}}}, in bytes and in seconds since the first moment. Of parameters, gradients,
// optimizer, activations, batches, cache those that nobody counted are null; "other" is what is resident beyond the
// counted ones. Of many moments 256 are left, each the one with most resident of its share of the time. null without
// moments: unavailable.
nlohmann::ordered_json to_json(const MemoryTimeline& timeline);

enum class Bound { compute, data };
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
nlohmann::ordered_json to_json(const std::vector<Finding>& findings);  // Each {"code", "sentence", "advice"}.

// When a finding is made. A value equal to its threshold makes none.
struct FindingThresholds {
  double data_loading_ratio = 0.3;            // (Data wait + transfer) / (forward + backward + optimizer).
  std::int64_t memory_bytes = 8'000'000'000;  // 8 GB.
  double speed_ratio = 0.8;                   // Mean speed of the last speed_steps steps / mean speed of all.
  std::int64_t speed_steps = 10;
  double optimizer_share = 0.2;    // Of a step.
  double unaccounted_share = 0.1;  // Of a step: in no part.
};

// What else the diagnosis may know; nullopt: unavailable.
struct DiagnosisInput {
  TimeSplit split;
  std::int64_t samples_per_step = 0;    // Must be set.
  std::optional<double> loader_busy_s;  // CPU seconds of loader threads over the same steps.
  // Mean step seconds but for the data wait while no loader thread works, when measured.
  std::optional<double> undisturbed_step_s;
  int loader_threads = 1;
  int compute_threads = 1;
  int cores = 1;
  std::optional<std::int64_t> mean_memory;  // Bytes.
  std::optional<std::int64_t> peak_memory;  // Bytes; judged when mean_memory is unavailable.
  std::optional<double>
      free_data_step_s;  // Mean step seconds with the data replaced by one cached batch, when measured.
  FindingThresholds thresholds;
  bool has_fused_optimizer = false;  // optimizer.fused = true is in force.
};

struct Diagnosis {
  Bound bound = Bound::compute;
  double samples_per_second = 0;
  double predicted_free_data_gain = 0;            // Step time now / predicted step time with free data - 1.
  std::optional<double> measured_free_data_gain;  // The same, measured.
  std::string sentence;                           // "compute-bound: 96 % of a step is forward and backward; ..."
  std::vector<Finding> findings;                  // PROF-07's rules and ours.
};

// Data-bound when free data would gain at least 10 % (measured if known, else predicted); compute-bound otherwise.
// Prediction: a step loses its data wait, and compute gets back what loader threads took from it: measured where
// undisturbed_step_s is known, else their core time where threads exceed cores, a lower bound. Error{invalid_argument}
// without steps, samples_per_step, cores or threads.
Diagnosis diagnose(const DiagnosisInput& input);
nlohmann::ordered_json to_json(const Diagnosis& diagnosis);

// What loading costs by part, in seconds of a sample, threads added up.
struct LoadingCosts {
  double read_s = 0;
  double decode_s = 0;
  double augment_s = 0;          // Crop, resize, flip, normalise, layout and type: one pass, into the batch's memory.
  double collate_s = 0;          // Making batches of samples beyond that pass.
  std::optional<double> copy_s;  // To where the step computes; nullopt: unavailable.

  double sample_s() const { return read_s + decode_s + augment_s + collate_s; }
};

// What advice on loading needs to know.
struct LoadingInput {
  struct Transform {  // An optional one.
    std::string name;
    std::string setting;       // That leaves it out: "data.transform.flip_probability = 0".
    double read_share = 0;     // Of the costs' read_s,
    double decode_share = 0;   // of decode_s,
    double augment_share = 0;  // and of augment_s. Below 0: without it these take longer.
  };

  LoadingCosts costs;
  double cpu_share = 1;    // The part of costs that computes; the rest waits.
  double own_s = 0;        // The consumer's own time for a sample: what it does not wait for loading.
  int loader_threads = 1;  // 0: the consumer loads.
  int compute_threads = 1;
  int cores = 1;
  double samples_per_second = 0;  // Now, measured.
  std::vector<Transform> transforms;
  std::string gpu;  // Its name, or "unavailable: " and why there is none.
};

// A change that somebody else must decide on, or that cannot be made here.
struct Proposal {
  std::string name;       // "without pad", "augment on the GPU"
  std::string setting;    // "data.transform.pad = 0"; empty: there is none.
  std::string requested;  // What is proposed: "off", "gpu".
  std::string applied;    // What is in force: "on", "cpu".
  std::string reason;     // With its numbers, or why it is not applicable.
  bool applicable = true;
  std::optional<double> predicted_samples_per_second;
};

struct LoadingAdvice {
  LoadingCosts costs;
  std::vector<Proposal> proposals;
};

// Samples a second when a sample's loading costs `sample_s` seconds of the threads. A job goes at the pace of its
// slowest part: the loader's threads together, the consumer, or the cores under both; the measured rate is scaled by
// what this model says of then and now.
double predicted_rate(const LoadingInput& input, double sample_s);

// Proposes to leave out the dearest optional transform, where leaving it out saves 1 % of what a sample costs or more,
// and to transform on the GPU, which is not applicable here: without a device, or as nothing in this program computes
// on one.
LoadingAdvice advise(const LoadingInput& input);
nlohmann::ordered_json to_json(const LoadingAdvice& advice);  // "seconds_a_sample" by part, "proposals".

// Everything a report shows, as values; the caller fills it from ledger, machine and diagnosis. An empty text, an empty
// list, a nullopt, a rate of 0 and speedup_pairs of 0 mean that it is unavailable, and the report says so.
struct Report {
  // Decides which of the values below belong to it: a profile has no changes, a training neither them nor a split.
  enum class Kind { tuning, profile, training };
  struct Change {
    std::string name;
    std::string sentence;                             // What it changes.
    std::string verdict;                              // "kept", "refused", "inconclusive", "failed".
    std::string reason;                               // One sentence with the numbers.
    std::optional<double> gain, gain_low, gain_high;  // 0.21: 21 % faster.
    std::int64_t pairs = 0;
    std::string numerics;  // "gradients, relative L2: 3.1e-07 of 1e-02 allowed"; empty: not checked.
    std::vector<std::pair<std::string, std::string>> settings;
  };
  struct Curve {  // A value over training, e.g. test accuracy by epoch.
    std::string name, unit;
    std::vector<double> x, y;
  };
  struct Stage {  // Of loading: "read", "decode", "transform", "consume".
    std::string name;
    std::int64_t records = 0;  // Samples.
    double busy_s = 0, wait_for_input_s = 0, wait_for_output_s = 0;
    std::int64_t bytes = 0;  // Given on.
    double queue = 0;        // Mean of whole batches waiting before it.
    bool limits = false;     // It bounds the rate.
  };
  struct Decision {  // A setting that the loader changed by itself.
    std::int64_t batch = 0;
    double at_s = 0;
    std::string what;
    std::string from, to;
    std::string why;
    double before = 0;  // Samples a second.
    std::optional<double> after;
    bool rolled_back = false;
  };
  struct Pass {  // Over a sample's values while it is loaded.
    std::string name;
    std::int64_t samples = 0;            // That took it.
    double bytes_in = 0, bytes_out = 0;  // Means of all samples.
  };
  struct LoadingPlan {
    std::vector<Pass> passes;                            // In order.
    std::int64_t stages = 0;                             // If each were a pass of its own,
    double copied = 0, touched = 0;                      // bytes a sample now,
    double copied_by_stages = 0, touched_by_stages = 0;  // and then.
  };
  Kind kind = Kind::tuning;
  std::string title;    // "fashion_mnist"
  std::string note;     // What holds for every figure on the page, above them all; empty: nothing.
  std::string verdict;  // One sentence, first on the page: "2.41 times as fast, numerically the same."
  bool positive = false;
  double speedup = 0, speedup_low = 0, speedup_high = 0;
  std::int64_t speedup_pairs = 0;
  // Of a profile or a training the first alone.
  double baseline_samples_per_second = 0, best_samples_per_second = 0;
  // Of a tuning both together: of the blocks of the pairs that the speedup is from. Where nothing was compared, and of
  // a profile, the first alone.
  std::optional<TimeSplit> before, after;
  double late_share = 0;  // The share of a run that is over before all that was kept pays; after is of the rest.
  std::optional<double> budget_s;  // Of the tuning.
  std::string disturbance;         // That the machine was not quiet, with the figures; empty: it was, or nobody looked.
  std::string diagnosis;           // Its sentence.
  std::vector<Finding> findings;
  std::vector<Change> changes;                                             // In the order they were tried.
  std::optional<double> val_accuracy, val_loss, test_accuracy, test_loss;  // Of the training's result.
  std::string choice;  // How that was chosen, a sentence; empty: no training ended.
  std::vector<Curve> curves;
  MemoryTimeline memory;            // Without moments: unavailable.
  std::vector<Stage> stages;        // Of loading the training data.
  std::vector<Decision> decisions;  // In order.
  std::optional<LoadingPlan> loading_plan;
  std::optional<LoadingAdvice> loading_advice;
  std::vector<std::pair<std::string, std::string>> environment;  // Allow-listed names and values.
  std::vector<Applied> settings;                                 // What was asked for, and what was in force.
  std::string command;                                           // Reproduces the run.
  std::string written;                                           // UTC time.
};

// The report's findings with advice that knows of the report's changes and settings: for a suggestion about a key that
// was tried it says what came of that (and, where it stayed inconclusive, what would decide it), for one about a key
// that could not be set, why.
std::vector<Finding> advice_left(const Report& report);

// One HTML file: no script, no request to anywhere (Content-Security-Policy default-src 'none', inline style only);
// every text is escaped, bytes that are not UTF-8 become U+FFFD; charts are inline SVG with <title>/<desc> and a table
// beside; readable from 360 px up, in dark mode, in print, and without colour. URLs in texts lose user:password and
// query strings. Error{invalid_argument} when a curve has not as many x as y.
std::string report_html(const Report& report);
// The same for a terminal of `width` columns (at least 40): verdict, table of changes, time split, what to look at
// next. No line is wider. UTF-8; control characters in texts are replaced. `colour`: ANSI colours, on top of words and
// signs.
std::string report_text(const Report& report, int width, bool colour);

// "https://user:secret@host/a?token=x" -> "https://host/a"; other text unchanged.
std::string without_credentials(const std::string& text);

}  // namespace headrace
