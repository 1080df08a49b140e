// From a trace to where the time went, what limits the job, and a report. Pure functions: no clock, no file but the one
// named.
#pragma once

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
  std::vector<double> step_s;  // Each step's duration, in order.
};

// Divides the steps of a record (spans step::k*) by their parts; the first `skip` steps are left out as warm-up. A part
// counts for the step that it lies in on the same thread. Error{corrupt_data} when a record holds no whole step.
TimeSplit split_time(const TraceRecord& record, std::int64_t skip = 0);
nlohmann::ordered_json to_json(const TimeSplit& split);

enum class Bound { compute, data };
const char* to_string(Bound bound) noexcept;

struct Finding {
  std::string code;      // Stable: "data_loading_slow", "high_memory", "speed_degraded", ...
  std::string sentence;  // What was seen, with its numbers.
  std::string advice;
};

// What else the diagnosis may know; nullopt: unavailable.
struct DiagnosisInput {
  TimeSplit split;
  std::int64_t samples_per_step = 0;
  std::optional<double> loader_busy_s;  // CPU seconds of loader threads over the same steps.
  int compute_threads = 1;
  int cores = 1;
  std::optional<std::int64_t> peak_memory;  // Bytes.
  std::optional<double>
      free_data_step_s;  // Mean step seconds with the data replaced by one cached batch, when measured.
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
// Prediction: a step loses its data wait, and compute gets back the core time that loader threads took from it where
// threads exceed cores.
Diagnosis diagnose(const DiagnosisInput& input);
nlohmann::ordered_json to_json(const Diagnosis& diagnosis);

// Everything a report shows, as values; the caller (cli) fills it from ledger, machine and diagnosis.
struct Report {
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
  std::string title;    // "fashion_mnist"
  std::string verdict;  // One sentence, first on the page: "2.41 times as fast, numerically the same."
  bool positive = false;
  double speedup = 0, speedup_low = 0, speedup_high = 0;
  std::int64_t speedup_pairs = 0;
  double baseline_samples_per_second = 0, best_samples_per_second = 0;
  std::optional<TimeSplit> before, after;
  std::string diagnosis;  // Its sentence.
  std::vector<Finding> findings;
  std::vector<Change> changes;  // In the order they were tried.
  std::optional<double> test_accuracy, test_loss;
  std::vector<Curve> curves;
  std::vector<std::pair<std::string, std::string>> environment;  // Allow-listed names and values.
  std::vector<std::pair<std::string, std::string>> settings;     // Requested, applied.
  std::string command;                                           // Reproduces the run.
  std::string written;                                           // UTC time.
};

// One HTML file: no request to anywhere, Content-Security-Policy default-src 'none', inline style, one hashed script;
// every text is escaped; charts are inline SVG with <title>/<desc> and a table beside; readable from 360 px up, in dark
// mode, and without colour. URLs in texts lose user:password and query strings.
std::string report_html(const Report& report);
// The same for a terminal of `width` columns: verdict, table of changes, time split. `colour`: ANSI colours.
std::string report_text(const Report& report, int width, bool colour);

// "https://user:secret@host/a?token=x" -> "https://host/a"; other text unchanged.
std::string without_credentials(const std::string& text);

}  // namespace headrace
