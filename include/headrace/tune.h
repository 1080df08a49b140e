// One change at a time, measured against the best configuration so far, kept only when it is faster and numerically the
// same.
//
// The tuner knows settings as recipe keys and values, and measures; a Job supplies both (engine/assembly/training_job.h
// from a recipe, Python from the user's own objects). Everything here runs on the calling thread.
// src/insight/tune/statistics.h and comparison.h say which test decides, src/insight/tune/tuner.h how the budget is
// divided.
#pragma once

#include <headrace/insight.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "insight/tune/tune_options.h"

namespace headrace {

// How close a change must stay to the original (DESIGN section 3, "A trial").
enum class NumericClass {
  bit_equal,  // Same bits of every parameter and buffer after 5 steps.
  // One step from one state, 5 batches: as near to the same batches in float64 as the original is, up to a factor of 4;
  // where float64 is not affordable, loss 1e-5 relative, gradients 1e-2 relative L2. See numeric_check.h.
  rounding,
  reduced_precision,  // Mean gradient cosine >= 0.9 over 8 batches; last tenth of a short run inside the band of 3
                      // seeds.
};
const char* to_string(NumericClass numeric_class) noexcept;

// Recipe keys and their values as TOML text: {"optimizer.fused", "true"}.
using Settings = std::map<std::string, std::string>;

struct Candidate {
  std::string name;      // "fused optimizer": in tables, the ledger and --tune.only.
  std::string sentence;  // What it changes, for a person.
  Settings changes;      // On top of the configuration it is tried on.
  NumericClass numerics = NumericClass::rounding;
  std::string resource;  // What it relieves: "compute", "data", "memory". Tried first when the diagnosis names it.
  // The share of the run (0 to below 1) that is over before the change pays: 1 / epochs for a cache that the first
  // epoch fills. It is measured in full effect; in its gain this share of the run counts as slow as without it.
  double late_share = 0;
  // It changes nothing but how many threads or processes work: what pays then depends on what else the machine does,
  // so that it is not tried while others take the cores.
  bool divides_cores = false;
};

// Loss and gradients of one forward and backward on one batch, from the snapshot's state.
struct Fingerprint {
  struct Gradient {
    std::string name;
    std::vector<float> values;
  };
  double loss = 0;
  std::vector<Gradient> gradients;
};

// The same, computed in float64: what rounding keeps a float32 computation away from.
struct ExactFingerprint {
  struct Gradient {
    std::string name;
    std::vector<double> values;
  };
  double loss = 0;
  std::vector<Gradient> gradients;
};

struct ExactResult {
  std::optional<ExactFingerprint> fingerprint;
  std::string why_not;  // For a person, where there is none.
};

// A training or serving job that can be measured under different settings. The tuner's only view of the world.
class Job {
 public:
  virtual ~Job() = default;
  // Parameters, buffers, optimizer, generators and data position as they are now; restore() puts them back, any number
  // of times. Thrown exceptions inside run() leave the job restorable.
  virtual void snapshot() = 0;
  virtual void restore() = 0;
  // Makes exactly these settings hold (keys not named: as the recipe wrote them). Throws Error when one cannot be
  // applied; the job is then as before.
  virtual void configure(const Settings& settings) = 0;
  // Runs this many steps on the next batches and returns the wall seconds of each step, data wait included. Before each
  // block of steps the tuner calls configure() and then restore(); after an exception restore() comes first.
  virtual std::vector<double> run(std::int64_t steps) = 0;
  struct SplitRun {
    std::vector<double> step_s;      // What run() returns.
    std::optional<TimeSplit> split;  // Of these seconds; nullopt: unavailable.
  };
  // run(), and what the steps spent their time on. The last comparison, of best and baseline, is made of these.
  virtual SplitRun run_split(std::int64_t steps) { return {run(steps), std::nullopt}; }
  // On batch `batch` (0, 1, ... of a fixed order) from the present state, which it leaves as it was.
  virtual Fingerprint fingerprint(std::int64_t batch) = 0;
  // The same as the recipe as written computes it, but in float64, with the same random draws. It leaves the state as
  // it was; after an exception restore() comes first.
  virtual ExactResult exact_fingerprint(std::int64_t /*batch*/) {
    return {std::nullopt, "this job has no float64 form"};
  }
  // Every parameter and buffer of the present state, for bit_equal.
  virtual std::uint64_t state_hash() = 0;
  // Largest relative L2 difference of parameters and optimizer state between the update under `a` and under `b` from
  // the same snapshot on the same given gradients (class rounding; tolerance 1e-6). 0 when the update does not depend
  // on the settings.
  virtual double update_difference(const Settings& a, const Settings& b) = 0;
  // What a short run of `steps` steps from a fresh model of that seed has learned, as a loss (class reduced_precision):
  // comparable from one run to the next, whatever the settings. Restores the state.
  virtual double short_run(std::int64_t steps, std::uint64_t seed) = 0;
  virtual std::int64_t samples_per_step() const = 0;
};

// A paired comparison on log ratios of block times: gain = baseline time / candidate time - 1 (0.10: 10 % faster), with
// a 95 % interval. Of a single pair nothing is known: the ends are -1 and infinity.
struct Interval {
  double median = 0;
  double low = 0;
  double high = 0;
};

enum class Verdict { kept, refused, inconclusive, failed };
enum class Reason {
  none,       // Kept, or stopped from outside.
  slower,     // The interval's upper end lies below 0.
  no_gain,    // It lies below gain_min.
  numerics,   // Beyond the tolerance of its class.
  memory,     // The job threw Error{out_of_memory} or std::bad_alloc.
  budget,     // Pairs or seconds were used up.
  error,      // The job threw something else.
  fixed,      // Not tried: TuneOptions::fixed protects a key that it changes.
  not_quiet,  // Not tried: the machine is not quiet, and the budget holds fewer decisions.
};
const char* to_string(Verdict verdict) noexcept;
const char* to_string(Reason reason) noexcept;

struct NumericResult {
  NumericClass numeric_class = NumericClass::rounding;
  bool checked = false;
  bool passed = false;
  double value = 0;  // The figure that came closest to, or went furthest beyond, its tolerance; passed: at most that.
  double tolerance = 0;
  std::string measure;  // What the figure is: "gradients, relative L2".
  // Class rounding: what decided. With a float64 run, `value` is the change's error against it, and the tolerance a
  // multiple of `baseline_error`.
  std::optional<double> baseline_error;
  std::string why_not_float64;  // Where the fixed figures served instead.
};

// Whether other work on this machine disturbs what is measured, found before the first trial. Shares are of all cores'
// time while blocks of the job as written ran. nullopt: unavailable.
struct Quietness {
  std::optional<bool> quiet;      // nullopt: neither the job's blocks nor the system could tell.
  bool cores_taken = false;       // By other programs or the host's other machines, and not by noise alone.
  std::string sentence;           // For a person, with the figures.
  std::int64_t blocks = 0;        // Of the job as written, in a row.
  double block_s = 0;             // Median.
  std::optional<double> scatter;  // Of log ratios of neighbouring blocks, as pairs of a trial are: 1.4826 * MAD.
  std::optional<double> lag;      // Correlation of a block's log time with the next one's: slow noise nears 1.
  std::optional<double> own, others, steal, idle;
  std::optional<double> pressure, pressure_avg10, group_pressure,
      group_pressure_avg10;            // Linux pressure stall, "some".
  std::int64_t pairs_needed = 0;       // To decide on a gain of 10 %. 0: not estimated.
  std::int64_t candidates_wanted = 0;  // That the tuner was given.
  std::int64_t candidates_held = 0;    // Decisions that the budget holds.
};

struct Trial {
  std::string name;
  Settings changes;
  Verdict verdict = Verdict::inconclusive;
  Reason reason = Reason::none;
  std::string sentence;  // For a person: what was found, with the numbers.
  std::int64_t pairs = 0;
  std::optional<Interval> gain;  // nullopt: not measured (failed, refused by numerics first).
  NumericResult numerics;
  std::vector<double> baseline_s;  // Seconds a step of each pair's block, as measured, in order.
  std::vector<double> candidate_s;
  double late_share = 0;       // The candidate's. With it, gain says less than the two lists do.
  bool removed_again = false;  // Kept at first, taken out later; verdict, reason and sentence say why.
};

struct Ledger {
  Settings baseline;  // As the recipe wrote the keys that candidates touch. tune() cannot know: the caller fills it in.
  Settings best;      // Changes kept, all together.
  std::vector<Trial> trials;
  Quietness quietness;
  // Of best over baseline, as a ratio: 1.44 means 1.44 times as fast. 1 without pairs when nothing was kept, NaN when a
  // stop or the budget came before the comparison.
  Interval speedup;
  std::int64_t speedup_pairs = 0;
  // Of that last comparison: seconds a step of each block as measured, in order, and what all their steps spent them on
  // (sums alone). Empty, and nullopt, without pairs; nullopt also where the job cannot tell.
  std::vector<double> baseline_s, best_s;
  std::optional<TimeSplit> baseline_split, best_split;
  double baseline_samples_per_second = 0;  // Medians of that last comparison, or of the last one made without it.
  double best_samples_per_second = 0;      // Over a whole run, where a kept change pays late.
  double spent_s = 0;
  double budget_s = 0;
};

// Told what happens while it happens; empty functions are not called.
struct TuneProgress {
  std::function<void(const Quietness&)> judged;  // Before the first trial.
  std::function<void(const Candidate&, std::size_t index, std::size_t count)> trying;
  std::function<void(const Trial&)> decided;  // Again for a trial that was open, or whose kept change is taken out.
  std::function<bool()> stop;                 // True: ends after the pair at hand; candidates left are inconclusive.
};

// Tries the candidates in order, which is that of their promise: on a machine that is not quiet the budget goes to as
// many of the first as it can decide, and the others are left out (Reason::not_quiet). `seed` decides the order within
// each pair. Afterwards the job has the best settings and the snapshot's state. Rethrows Error{cancelled} never: a stop
// ends with what is known. What the job throws under the baseline's own settings is rethrown; Error{invalid_argument}
// when options.only names no candidate.
Ledger tune(Job& job, const std::vector<Candidate>& candidates, const TuneOptions& options, std::uint64_t seed,
            const TuneProgress& progress = {});

// ledger.json: {"format": "headrace-ledger", "version": 1, ...}. Numbers that are not finite become null. Sentences may
// hold bytes of foreign exceptions: dump with error_handler_t::replace.
nlohmann::ordered_json to_json(const Ledger& ledger);

// Reads ledger.json back, null as NaN. `source` names the file in errors: Error{corrupt_data} when the text is not such
// a document, Error{unsupported} when its version is not known here.
Ledger parse_ledger(std::string_view text, std::string_view source);

}  // namespace headrace
