#include "tune/ledger_report.h"

#include <headrace/error.h>

#include <algorithm>

namespace headrace {
namespace {

std::string numerics_of(const NumericResult& numerics) {
  std::string text = fmt::format("{}: {:.2g} ({} {:.2g}", numerics.measure, numerics.value,
                                 numerics.passed ? "allowed" : "beyond", numerics.tolerance);
  if (numerics.baseline_error) text += fmt::format("; as written {:.2g}", *numerics.baseline_error);
  text += ")";
  if (!numerics.why_not_float64.empty()) text += fmt::format("; not against float64: {}", numerics.why_not_float64);
  return text;
}

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
  if (trial.numerics.checked) change.numerics = numerics_of(trial.numerics);
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
  if (!ledger.quietness.quiet.value_or(true)) report.disturbance = ledger.quietness.sentence;
  report.speedup = ledger.speedup.median;
  report.speedup_low = ledger.speedup.low;
  report.speedup_high = ledger.speedup.high;
  report.speedup_pairs = ledger.speedup_pairs;
  report.baseline_samples_per_second = ledger.baseline_samples_per_second;
  report.best_samples_per_second = ledger.best_samples_per_second;
  for (const Trial& trial : ledger.trials) report.changes.push_back(change_of(trial, candidates));
}

std::vector<Applied> settings_left_out(const Ledger& ledger) {
  std::vector<Applied> list;
  for (const Trial& trial : ledger.trials) {
    if (trial.reason != Reason::not_quiet) continue;
    for (const auto& [key, value] : trial.changes) {
      const Settings& held = ledger.best.contains(key) ? ledger.best : ledger.baseline;
      list.push_back({key, value, held.contains(key) ? held.at(key) : "as it was", trial.sentence});
    }
  }
  return list;
}

}  // namespace headrace
