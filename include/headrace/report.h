// A report as values, and as HTML and text. Pure functions of their arguments, safe to call from any thread.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/error.h>
#include <headrace/flame_graph.h>
#include <headrace/loading_advice.h>
#include <headrace/profile_summary.h>
#include <headrace/resource_verdict.h>
#include <headrace/step_waterfall.h>
#include <headrace/time_split.h>
#include <headrace/trace.h>
#include <headrace/wall_split.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// Everything a report shows, as values; the caller fills it from ledger, machine and diagnosis. An empty text, an empty
// list, a nullopt, a rate of 0 and speedup_pairs of 0 mean that it is unavailable, and the report says so (but see
// live).
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
    std::vector<double> pair_gains{};  // As gain, of each pair of blocks in its order; empty: unavailable.
  };
  struct NotTried {  // A change that was not offered to the tuner.
    std::string name, key, reason;
  };
  struct Curve {  // A value over training, e.g. test accuracy by epoch.
    std::string name, unit;
    std::vector<double> x, y;
  };
  struct ClassFigures {  // Of one class of an evaluation, in samples.
    std::string name;
    std::int64_t samples = 0, right = 0, predicted = 0;  // Of the class, of these right, and taken for the class.
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
  struct TransformStep {  // Operations that run one behind the other.
    std::vector<std::string> operations;
    bool fused = false;  // In one pass.
    std::string why;     // What kept them from one pass with those before; empty: nothing did.
  };
  struct LoadingPlan {
    std::vector<Pass> passes;                            // In order.
    std::int64_t stages = 0;                             // If each were a pass of its own; 0: unknown,
    double copied = 0, touched = 0;                      // bytes a sample now,
    double copied_by_stages = 0, touched_by_stages = 0;  // and then.
    std::vector<TransformStep> transforms{};
  };
  struct Cache {                        // Of samples, as the loader of the training data keeps it.
    std::string kind;                   // In force: "none", "decoded", "encoded".
    std::string reason;                 // Why that is not what was asked for; empty: it is.
    std::int64_t hits = 0, misses = 0;  // Samples found in it, and looked for in vain.
    std::int64_t bytes = 0;             // Held at the end.
  };
  struct Latency {  // Of batches: half, 5 in 100, 1 in 100 came as long or longer after they were asked for.
    double p50_s = 0, p95_s = 0, p99_s = 0;
  };
  struct Course {  // When the changes of a live run were in force.
    struct Row {
      std::string name;
      // From the first to the last of a stretch, from 1, in order, at least one stretch; none touches the next one.
      std::vector<std::pair<std::int64_t, std::int64_t>> updates;
    };
    std::int64_t updates = 0;  // Of the run.
    std::vector<Row> rows;
  };
  struct Traced {       // What one recording of steps shows.
    std::string label;  // "Now"; of a tuning "Before" and "After".
    TimeSplit split;    // With each step's time.
    StepWaterfall waterfall;
    FlameGraph flame;
    ProfileSummary spans;
    std::int64_t dropped = 0;  // Events that full rings lost.
  };
  Kind kind = Kind::tuning;
  // Of a tuning: its pairs are updates of a run that went on, not trials beside it. What nobody measures in such a run
  // is left out of its report, and one sentence says what measures it.
  bool live = false;
  std::string title;    // "fashion_mnist"
  std::string note;     // What holds for every figure on the page, above them all; empty: nothing.
  std::string verdict;  // One sentence, first on the page: "2.41 times as fast, numerically the same."
  bool positive = false;
  double speedup = 0, speedup_low = 0, speedup_high = 0;
  std::int64_t speedup_pairs = 0;
  std::vector<double> speedup_ratios;  // Of each of these pairs, in order; empty: unavailable.
  // Of a profile or a training the first alone.
  double baseline_samples_per_second = 0, best_samples_per_second = 0;
  // Of a tuning both together: of the blocks of the pairs that the speedup is from. Where nothing was compared, and of
  // a profile, the first alone.
  std::optional<TimeSplit> before, after;
  std::optional<WallSplit> wall;  // Of a whole loop; nullopt: nobody split it.
  std::optional<Waits> waits;     // nullopt: nobody summed them up.
  double late_share = 0;  // The share of a run that is over before all that was kept pays; after is of the rest.
  std::optional<double> budget_s;  // Of the tuning.
  std::string disturbance;         // That the machine was not quiet, with the figures; empty: it was, or nobody looked.
  std::string diagnosis;           // Its sentence.
  std::optional<ResourceVerdict> resources;  // The diagnosis' own.
  std::vector<Finding> findings;
  std::vector<Change> changes;  // In the order they were tried.
  std::vector<NotTried> not_tried;
  std::optional<double> val_accuracy, val_loss, test_accuracy, test_loss;  // Of the training's result.
  std::string choice;                 // How that was chosen, a sentence; empty: no training ended.
  std::string classes_of;             // The split of the counts below: "test".
  std::vector<ClassFigures> classes;  // By label; empty: unavailable.
  std::vector<Curve> curves;
  std::vector<Traced> traces;       // Empty: no steps were recorded.
  MemoryTimeline memory;            // Without moments: unavailable.
  std::optional<Cache> cache;       // nullopt: nobody counts one.
  std::vector<Stage> stages;        // Of loading the training data.
  std::optional<Latency> latency;   // Of that loader; nullopt: no batch was asked for, or nobody counts.
  std::optional<Course> course;     // nullopt: nothing was switched in a run under way.
  std::vector<Decision> decisions;  // In order.
  std::optional<LoadingPlan> loading_plan;
  std::optional<LoadingAdvice> loading_advice;
  std::vector<std::pair<std::string, std::string>> environment;  // Allow-listed names and values.
  std::vector<Applied> settings;                                 // What was asked for, and what was in force.
  std::string command;                                           // Reproduces the run.
  std::string written;                                           // UTC time.
};

// Adds what a recording of steps shows, without its first `skip` steps. Errors are split_time()'s.
void show_trace(Report& report, const TraceRecord& record, const std::string& label, std::int64_t skip = 0);

// The report's findings with advice that knows of the report's changes and settings: for a suggestion about a key that
// was tried it says what came of that (and, where it stayed inconclusive, what would decide it), for one about a key
// that could not be set, why.
std::vector<Finding> advice_left(const Report& report);

// One HTML file: no script, no request to anywhere (Content-Security-Policy default-src 'none', inline style only);
// every text is escaped, bytes that are not UTF-8 become U+FFFD; charts are inline SVG with <title>/<desc> and a table
// beside; readable from 360 px up, in dark mode, in print, and without colour. URLs in texts lose user:password and
// query strings. A page is meant to stay below 1.5 MB: long texts are cut, long series thinned, and what is left out is
// counted. Error{invalid_argument} when a curve has not as many x as y.
std::string report_html(const Report& report);
// The same for a terminal of `width` columns (at least 40): verdict, table of changes, time split, percentiles of the
// steps, a step's waterfall, stacks by time, loading, cache, memory, what to look at next. No line is wider. UTF-8;
// control characters in texts are replaced. `colour`: ANSI colours, on top of words and signs.
std::string report_text(const Report& report, int width, bool colour);

// "https://user:secret@host/a?token=x" -> "https://host/a"; other text unchanged.
std::string without_credentials(const std::string& text);

}  // namespace headrace
