#include "insight/diagnose/detail/next_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "insight/diagnose/detail/figures.h"

namespace headrace {
namespace {

// What gives open changes more pairs.
std::string more_budget_text(const Report& report) {
  if (report.live) return "A longer run gives more pairs.";
  return report.budget_s ? fmt::format("A larger budget than {:.4g} s gives more pairs.", *report.budget_s)
                         : "A larger budget gives more pairs.";
}

// The gain alone says it where that decided, or left it open.
std::string verdict_text(const Report::Change& change) {
  if (change.verdict == "kept" && change.gain) return fmt::format("kept, {}.", detail::gain_text(change));
  if (change.verdict == "inconclusive" && change.gain) {
    return fmt::format("inconclusive, {} after {} pairs.", detail::gain_text(change), change.pairs);
  }
  return fmt::format("{}. {}", change.verdict, change.reason);
}

// What became of the changes of one of these keys; empty: none was tried.
std::string outcome_text(const Report& report, const std::vector<std::string>& keys) {
  std::string text;
  bool any_open = false;
  for (const Report::Change& change : report.changes) {
    std::string settings;
    for (const auto& [key, value] : change.settings) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
      settings += fmt::format("{}{} = {}", settings.empty() ? "" : ", ", key, value);
    }
    if (settings.empty()) continue;
    any_open = any_open || change.verdict == "inconclusive";
    text += fmt::format("{}{}: {}", text.empty() ? "" : " ", settings, verdict_text(change));
  }
  return any_open ? text + " " + more_budget_text(report) : text;
}

// Why one of these keys was not tried, or is not as it was asked for; empty: neither is said.
std::string refusal_text(const Report& report, const std::vector<std::string>& keys) {
  const auto is_about = [&](const std::string& key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  const auto refusal = [](const auto& entry) {
    return fmt::format("{}: not applicable: {}.", entry.key, entry.reason);
  };
  for (const Report::NotTried& change : report.not_tried) {
    if (is_about(change.key)) return refusal(change);
  }
  for (const Applied& setting : report.settings) {
    if (!setting.holds() && is_about(setting.key)) return refusal(setting);
  }
  return {};
}

// Whether a change's own line says why it is so: nobody but the tuner asked for it.
bool is_told_of_a_change(const Report& report, const Applied& setting) {
  return std::any_of(report.changes.begin(), report.changes.end(),
                     [&](const Report::Change& change) { return change.reason == setting.reason; });
}

std::string text_left(const Report& report, const Finding::Suggestion& suggestion) {
  const std::string outcome = outcome_text(report, suggestion.keys);
  if (!outcome.empty()) return outcome;
  const std::string refusal = refusal_text(report, suggestion.keys);
  return refusal.empty() ? suggestion.sentence : refusal;
}

}  // namespace

std::vector<Finding> advice_left(const Report& report) {
  std::vector<Finding> findings = report.findings;
  for (Finding& finding : findings) {
    if (finding.suggestions.empty()) continue;
    finding.advice.clear();
    for (const Finding::Suggestion& suggestion : finding.suggestions) {
      finding.advice += (finding.advice.empty() ? "" : " ") + text_left(report, suggestion);
    }
  }
  return findings;
}

namespace detail {

std::vector<Finding> next_steps(const Report& report) {
  std::vector<Finding> steps;
  for (const Applied& setting : report.settings) {
    if (setting.holds() || (report.live && is_told_of_a_change(report, setting))) continue;
    steps.push_back({"setting_not_applied",
                     fmt::format("{} is {}, not {} as requested.", setting.key, setting.applied, setting.requested),
                     setting.reason});
  }
  const std::vector<Finding> findings = advice_left(report);
  steps.insert(steps.end(), findings.begin(), findings.end());
  const auto open = std::count_if(report.changes.begin(), report.changes.end(),
                                  [](const Report::Change& change) { return change.verdict == "inconclusive"; });
  if (open > 0) {
    steps.push_back({"changes_left_open",
                     fmt::format("{} {} left open.", open, open == 1 ? "change was" : "changes were"),
                     more_budget_text(report)});
  }
  return steps;
}

}  // namespace detail
}  // namespace headrace
