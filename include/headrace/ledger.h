// What the tuner tried, found and kept.
#pragma once

#include <headrace/job.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// A paired comparison on log ratios of block times: gain = baseline time / candidate time - 1 (0.10: 10 % faster), with
// the 95 % interval of a single look, which decides nothing: a verdict comes from bets on the pairs, which hold at
// every look. Of a single pair nothing is known: the ends are -1 and infinity.
struct Interval {
  double median = 0;
  double low = 0;
  double high = 0;
};

enum class Verdict { kept, refused, inconclusive, failed };
enum class Reason {
  none,          // Kept, or stopped from outside.
  slower,        // Dropped by bets on its pairs, with an error of 5 %, and the interval's upper end lies below 0.
  no_gain,       // Dropped by them otherwise, or it does nothing in the best configuration.
  numerics,      // Beyond the tolerance of its class.
  memory,        // The job threw Error{out_of_memory} or std::bad_alloc.
  budget,        // Seconds were used up.
  error,         // The job threw something else.
  fixed,         // Not tried: TuneOptions::fixed protects a key that it changes.
  not_quiet,     // Not tried: the machine is not quiet, and the budget holds fewer decisions.
  not_allowed,   // Not tried: its class is looser than TuneOptions::allow.
  carries_over,  // Not judged while the run goes on: what one setting prepared is used up under the other.
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

// ledger.json on one line: {"format": "headrace-ledger", "version": 1, ...}. Numbers that are not finite become null,
// bytes that are not UTF-8 (of foreign exceptions) U+FFFD.
std::string json_text(const Ledger& ledger);

// Reads ledger.json back, null as NaN. `source` names the file in errors: Error{corrupt_data} when the text is not such
// a document, Error{unsupported} when its version is not known here.
Ledger parse_ledger(std::string_view text, std::string_view source);

}  // namespace headrace
