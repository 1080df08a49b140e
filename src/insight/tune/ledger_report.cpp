#include "insight/tune/ledger_report.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "insight/tune/comparison.h"

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

// Of each pair, how many times as fast its second block was; none where the lists do not match.
std::vector<double> ratios_of(const std::vector<double>& baseline_s, const std::vector<double>& candidate_s) {
  std::vector<double> ratios;
  if (baseline_s.size() != candidate_s.size()) return ratios;
  for (std::size_t i = 0; i < baseline_s.size(); ++i) ratios.push_back(baseline_s[i] / candidate_s[i]);
  return ratios;
}

// None of a change that pays late: its gain is less than that of its pairs.
std::vector<double> pair_gains_of(const Trial& trial) {
  if (trial.late_share > 0) return {};
  std::vector<double> gains = ratios_of(trial.baseline_s, trial.candidate_s);
  for (double& gain : gains) gain -= 1;
  return gains;
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
    if (std::isfinite(trial.gain->high)) {  // Of a single pair there is no interval.
      change.gain_low = trial.gain->low;
      change.gain_high = trial.gain->high;
    }
  }
  if (trial.numerics.checked) change.numerics = numerics_of(trial.numerics);
  change.settings.assign(trial.changes.begin(), trial.changes.end());
  change.pair_gains = pair_gains_of(trial);
  return change;
}

// The undecided trials, and which of them looks best. At least one must be undecided.
std::string undecided_text(const Ledger& ledger) {
  std::size_t undecided = 0;
  const Trial* best = nullptr;
  for (const Trial& trial : ledger.trials) {
    if (trial.verdict != Verdict::inconclusive) continue;
    ++undecided;
    const bool is_measured = trial.gain && std::isfinite(trial.gain->median);
    if (is_measured && (best == nullptr || trial.gain->median > best->gain->median)) best = &trial;
  }
  const std::string count = fmt::format("{} of {} {} undecided", undecided, ledger.trials.size(),
                                        ledger.trials.size() == 1 ? "change stayed" : "changes stayed");
  if (best == nullptr) return fmt::format("{}, without a measured pair", count);
  const std::string gain = gain_text(*best->gain, best->pairs);
  if (undecided == 1) return fmt::format("{}: {}, {}", count, best->name, gain);
  return fmt::format("{}; of these {} looks best: {}", count, best->name, gain);
}

// The sentence at the head of a report. That nothing pays is said only where every change was judged.
std::string verdict_of(const Ledger& ledger, bool positive, std::string_view subject) {
  if (positive) {
    return fmt::format("{:.2f} times as fast as {}; every kept change passed its numerics check.",
                       ledger.speedup.median, subject);
  }
  if (!ledger.best.empty()) {
    if (ledger.speedup_pairs == 0) {
      return fmt::format("What was kept was not compared with {}: a stop or the budget came first.", subject);
    }
    return fmt::format(
        "What was kept is not proved to be faster than {}: {}.", subject,
        gain_text({ledger.speedup.median - 1, ledger.speedup.low - 1, ledger.speedup.high - 1}, ledger.speedup_pairs));
  }
  if (ledger.trials.empty()) return fmt::format("No change was tried on {}.", subject);
  const auto count = [&](const auto& is_so) {
    return std::count_if(ledger.trials.begin(), ledger.trials.end(), is_so);
  };
  if (count([](const Trial& trial) { return trial.verdict == Verdict::inconclusive; }) > 0) {
    return fmt::format("No change was proved to pay; {}.", undecided_text(ledger));
  }
  const auto failed = count([](const Trial& trial) { return trial.verdict == Verdict::failed; });
  const auto fixed = count([](const Trial& trial) { return trial.reason == Reason::fixed; });
  if (failed + fixed > 0) {
    return fmt::format("No change that could be judged paid; of {}, {} failed and tune.fixed protects {}.",
                       ledger.trials.size(), failed, fixed);
  }
  return fmt::format("No change paid: {} is as fast as these changes can make it here.", subject);
}

}  // namespace

void show_ledger(Report& report, const Ledger& ledger, std::span<const Candidate> candidates,
                 std::string_view subject) {
  report.positive = !ledger.best.empty() && ledger.speedup.low > 1;
  report.verdict = verdict_of(ledger, report.positive, subject);
  if (!ledger.quietness.quiet.value_or(true)) report.disturbance = ledger.quietness.sentence;
  report.speedup = ledger.speedup.median;
  report.speedup_low = ledger.speedup.low;
  report.speedup_high = ledger.speedup.high;
  report.speedup_pairs = ledger.speedup_pairs;
  report.baseline_samples_per_second = ledger.baseline_samples_per_second;
  report.best_samples_per_second = ledger.best_samples_per_second;
  if (ledger.baseline_split && ledger.best_split) {
    report.before = ledger.baseline_split;
    report.after = ledger.best_split;
  }
  report.budget_s = ledger.budget_s;
  report.speedup_ratios = ratios_of(ledger.baseline_s, ledger.best_s);
  for (const Trial& trial : ledger.trials) {
    report.changes.push_back(change_of(trial, candidates));
    if (trial.verdict == Verdict::kept) report.late_share = std::max(report.late_share, trial.late_share);
  }
  if (report.late_share > 0) report.speedup_ratios.clear();  // The speedup is less than that of its pairs.
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
