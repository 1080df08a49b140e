#include "insight/compare/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "insight/compare/detail/change_text.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kStagesShown = 6;

bool is_control(char letter) {
  return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f;
}

std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

// Of a table's cell: nothing in it ends the cell, begins markup, or is HTML.
std::string markdown_cell(const std::string& text) {
  std::string out;
  for (const char letter : one_line(text)) {
    if (letter == '<') {
      out += "&lt;";
    } else if (letter == '&') {
      out += "&amp;";
    } else {
      if (std::string_view("|`*_[]\\").find(letter) != std::string_view::npos) out += '\\';
      out += letter;
    }
  }
  return out;
}

// The metrics with this outcome, each with its change.
std::string metrics_with(const CompareVerdict& verdict, MetricChange change) {
  std::string text;
  for (const MetricVerdict& metric : verdict.metrics) {
    if (metric.change != change) continue;
    text += (text.empty() ? "" : "; ") + metric.rule.name;
    if (metric.interval) text += " " + interval_text(metric.rule, metric.interval);
  }
  return text;
}

std::string failing_drifts(const CompareReport& report) {
  std::string text;
  for (const MetricDrift& drift : report.drifts) {
    if (drift.is_failure()) text += (text.empty() ? "" : "; ") + drift_text(drift);
  }
  return text;
}

Json interval_json(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  return {{"median", finite(interval->median)}, {"low", finite(interval->low)}, {"high", finite(interval->high)}};
}

Json metric_json(const MetricVerdict& metric) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  return {{"name", metric.rule.name},
          {"verdict", to_string(metric.change)},
          {"old", or_null(metric.old_value)},
          {"new", or_null(metric.new_value)},
          {"change", interval_json(metric.interval)},
          {"absolute", metric.rule.is_absolute},
          {"better", metric.rule.better == Better::lower ? "lower" : "higher"},
          {"tolerance", metric.rule.tolerance},
          {"scatter", metric.scatter},
          {"pairs_needed", or_null(metric.pairs_needed)}};
}

Json drift_json(const MetricDrift& found) {
  return {{"metric", found.rule.name},
          {"first", found.first_label},
          {"last", found.last_label},
          {"builds", found.builds},
          {"change", change_of(found.rule, found.drift.effect)},
          {"largest_at", found.largest_label},
          {"is_new", found.is_new},
          {"is_failure", found.is_failure()}};
}

Json pairs_json(const CompareReport& report) {
  Json names = Json::array(), rows = Json::array();
  for (const MetricVerdict& metric : report.verdict.metrics) {
    if (metric.change != MetricChange::missing) names.push_back(metric.rule.name);
  }
  for (const PairEffects& pair : report.pairs) rows.push_back(pair);
  return {{"metrics", std::move(names)}, {"effects", std::move(rows)}};
}

}  // namespace

bool CompareReport::is_failure() const {
  return verdict.is_failure() ||
         std::any_of(drifts.begin(), drifts.end(), [](const MetricDrift& drift) { return drift.is_failure(); });
}

std::string conclusion(const CompareReport& report) {
  const CompareVerdict& verdict = report.verdict;
  if (!verdict.wrong_outputs.empty()) return "NEW is wrong: " + verdict.wrong_outputs;
  if (const std::string missing = metrics_with(verdict, MetricChange::missing); !missing.empty()) {
    return "NEW fails, as a result is missing: " + missing;
  }
  if (const std::string worse = metrics_with(verdict, MetricChange::regressed); !worse.empty()) {
    return "NEW is worse than OLD: " + worse;
  }
  if (const std::string drifts = failing_drifts(report); !drifts.empty()) {
    return "NEW goes on with what builds before it have begun: " + drifts;
  }
  const std::string open = metrics_with(verdict, MetricChange::inconclusive);
  const std::string better = metrics_with(verdict, MetricChange::improved);
  if (!better.empty()) return "NEW is better than OLD: " + better + (open.empty() ? "" : "; not decided: " + open);
  return open.empty() ? "NEW and OLD are equivalent" : "not decided: " + open;
}

std::string compare_text(const CompareReport& report) {
  const CompareVerdict& verdict = report.verdict;
  std::string text = fmt::format("OLD {}\nNEW {}\n{} ({})\n\n", report.old_label, report.new_label, conclusion(report),
                                 pairs_text(verdict));
  std::size_t width = 6;
  for (const MetricVerdict& metric : verdict.metrics) width = std::max(width, metric.rule.name.size());
  text += fmt::format("{:<{}}  {:>12}  {:>12}  {:<40} {}\n", "metric", width, "old", "new", "change", "verdict");
  for (const MetricVerdict& metric : verdict.metrics) {
    text += fmt::format("{:<{}}  {:>12}  {:>12}  {:<40} {}\n", metric.rule.name, width,
                        value_text(metric, metric.old_value), value_text(metric, metric.new_value),
                        interval_text(metric.rule, metric.interval), change_text(metric));
  }
  if (!verdict.stages.empty()) {
    text += fmt::format("\nParts of a step{}:\n", verdict.stages_are_of_one_pair ? ", in one further pair" : "");
  }
  for (std::size_t i = 0; i < std::min(kStagesShown, verdict.stages.size()); ++i) {
    const StageChange& stage = verdict.stages[i];
    text += fmt::format("  {} {}\n", stage.has_changed ? "changed:" : "        ", stage_text(stage));
  }
  for (const MetricDrift& drift : report.drifts) text += fmt::format("\nHistory: {}\n", drift_text(drift));
  for (const std::string& remark : verdict.remarks) text += fmt::format("\nNote: {}\n", remark);
  std::replace_if(
      text.begin(), text.end(), [](char letter) { return letter != '\n' && is_control(letter); }, '?');
  return text;
}

std::string compare_markdown(const CompareReport& report) {
  const CompareVerdict& verdict = report.verdict;
  const char* outcome = report.is_failure() ? "failed" : verdict.is_settled() ? "passed" : "not decided";
  std::string text =
      fmt::format("### headrace compare: {}\n\n{}\n\n{} to {}, {}\n\n", outcome, markdown_cell(conclusion(report)),
                  markdown_cell(report.old_label), markdown_cell(report.new_label), pairs_text(verdict));
  text += "| metric | old | new | change | verdict |\n|---|---:|---:|---|---|\n";
  for (const MetricVerdict& metric : verdict.metrics) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", markdown_cell(metric.rule.name),
                        value_text(metric, metric.old_value), value_text(metric, metric.new_value),
                        interval_text(metric.rule, metric.interval), change_text(metric));
  }
  for (const StageChange& stage : verdict.stages) {
    if (stage.has_changed) text += fmt::format("\nChanged part of a step: {}\n", markdown_cell(stage_text(stage)));
  }
  if (verdict.stages_are_of_one_pair && !verdict.stages.empty()) {
    text += fmt::format("\nLargest change of a part of a step, in one further pair: {}\n",
                        markdown_cell(stage_text(verdict.stages.front())));
  }
  for (const MetricDrift& drift : report.drifts)
    text += fmt::format("\nHistory: {}\n", markdown_cell(drift_text(drift)));
  for (const std::string& remark : verdict.remarks) text += fmt::format("\nNote: {}\n", markdown_cell(remark));
  for (const auto& [name, value] : report.machine) {
    text += fmt::format("\n{}: {}", markdown_cell(name), markdown_cell(value));
  }
  return text + fmt::format("\n\nReproduce: {}\n", markdown_cell(report.command));
}

std::string failed_markdown(const std::string& old_label, const std::string& new_label, const std::string& reason) {
  return fmt::format("### headrace compare: failed, nothing was compared\n\n{} to {}\n\n{}\n", markdown_cell(old_label),
                     markdown_cell(new_label), markdown_cell(reason));
}

Json compare_json(const CompareReport& report) {
  const CompareVerdict& verdict = report.verdict;
  Json document{{"format", "headrace-compare"}, {"version", 1}, {"old", report.old_label}, {"new", report.new_label}};
  document["conclusion"] = conclusion(report);
  document["failure"] = report.is_failure();
  document["settled"] = verdict.is_settled();
  document["compared"] = verdict.pairs == 0 ? "stored runs" : "pairs";
  document["pairs"] = verdict.pairs;
  document["metrics"] = Json::array();
  for (const MetricVerdict& metric : verdict.metrics) document["metrics"].push_back(metric_json(metric));
  document["stages"] = Json::array();
  for (const StageChange& stage : verdict.stages) {
    document["stages"].push_back({{"name", stage.name},
                                  {"old_s", stage.old_s},
                                  {"new_s", stage.new_s},
                                  {"share", interval_json(stage.share)},
                                  {"changed", stage.has_changed}});
  }
  document["stages_of"] = verdict.stages.empty()           ? Json(nullptr)
                          : verdict.stages_are_of_one_pair ? "one further pair"
                                                           : "pairs";
  document["outputs_compared"] = verdict.has_outputs;
  document["wrong_outputs"] = verdict.wrong_outputs.empty() ? Json(nullptr) : Json(verdict.wrong_outputs);
  document["drifts"] = Json::array();
  for (const MetricDrift& drift : report.drifts) document["drifts"].push_back(drift_json(drift));
  document["remarks"] = verdict.remarks;
  document["recorded"] = pairs_json(report);
  document["machine"] = Json::object();
  for (const auto& [name, value] : report.machine) document["machine"][name] = value;
  document["command"] = report.command;
  document["written"] = report.written;
  return document;
}

}  // namespace headrace
