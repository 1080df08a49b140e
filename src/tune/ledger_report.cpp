#include "tune/ledger_report.h"

#include <headrace/error.h>

#include <algorithm>

namespace headrace {
namespace {

Report::Change change_of(const Trial& trial, std::span<const Candidate> candidates) {
  Report::Change change;
  change.name = trial.name;
  const auto candidate =
      std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.name == trial.name; });
  if (candidate != candidates.end()) change.sentence = candidate->sentence;
  change.verdict = to_string(trial.verdict);
  change.reason = trial.sentence;
  change.pairs = trial.pairs;
  if (trial.gain) {
    change.gain = trial.gain->median;
    change.gain_low = trial.gain->low;
    change.gain_high = trial.gain->high;
  }
  if (trial.numerics.checked) {
    change.numerics = fmt::format("{}: {:.2g} ({} {:.2g})", trial.numerics.measure, trial.numerics.value,
                                  trial.numerics.passed ? "allowed" : "beyond", trial.numerics.tolerance);
  }
  change.settings.assign(trial.changes.begin(), trial.changes.end());
  return change;
}

}  // namespace

void show_ledger(Report& report, const Ledger& ledger, std::span<const Candidate> candidates,
                 std::string_view subject) {
  report.positive = !ledger.best.empty() && ledger.speedup.low > 1;
  report.verdict = report.positive
                       ? fmt::format("{:.2f} times as fast as {}; every kept change passed its numerics check.",
                                     ledger.speedup.median, subject)
                       : fmt::format("No change paid: {} is as fast as these changes can make it here.", subject);
  report.speedup = ledger.speedup.median;
  report.speedup_low = ledger.speedup.low;
  report.speedup_high = ledger.speedup.high;
  report.speedup_pairs = ledger.speedup_pairs;
  report.baseline_samples_per_second = ledger.baseline_samples_per_second;
  report.best_samples_per_second = ledger.best_samples_per_second;
  for (const Trial& trial : ledger.trials) report.changes.push_back(change_of(trial, candidates));
}

}  // namespace headrace
