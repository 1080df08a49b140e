// A comparison of two functions in the words of the one of two jobs.
#include <headrace/compare_functions.h>

#include <nlohmann/json.hpp>

#include "insight/compare/compare_report.h"
#include "insight/compare/detail/call_metric.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

CompareReport report_of(const FunctionComparison& comparison) {
  const CompareFunctionsOptions& options = comparison.options;
  CompareReport report{.old_label = options.old_name, .new_label = options.new_name, .verdict = {}};
  report.written = comparison.written;
  report.machine = comparison.machine;
  report.verdict.pairs = static_cast<std::int64_t>(comparison.pairs.size());
  const MetricRule rule = rule_of(kCallSeconds, call_choices(options.tolerance));
  report.verdict.metrics.push_back({.rule = rule,
                                    .change = comparison.change,
                                    .old_value = comparison.old_s,
                                    .new_value = comparison.new_s,
                                    .interval = comparison.slowdown,
                                    .scatter = comparison.scatter,
                                    .pairs_needed = comparison.pairs_needed});
  if (!comparison.why_undecided.empty()) report.verdict.remarks.push_back(comparison.why_undecided);
  for (const FunctionPair& pair : comparison.pairs) report.pairs.push_back({effect_of(rule, pair.old_s, pair.new_s)});
  return report;
}

Json samples_json(const FunctionComparison& comparison) {
  Json old_s = Json::array(), new_s = Json::array(), old_first = Json::array();
  for (const FunctionPair& pair : comparison.pairs) {
    old_s.push_back(pair.old_s);
    new_s.push_back(pair.new_s);
    old_first.push_back(pair.old_first);
  }
  return {{"calls", comparison.calls},
          {"old_s", std::move(old_s)},
          {"new_s", std::move(new_s)},
          {"old_first", std::move(old_first)}};
}

}  // namespace

std::string json_text(const FunctionComparison& comparison) {
  Json document = compare_json(report_of(comparison));
  document["format"] = "headrace-compare-functions";
  document.erase("command");  // Nothing was run by one.
  document["samples"] = samples_json(comparison);
  const CompareFunctionsOptions& options = comparison.options;
  document["options"] = {{"pairs", options.pairs},         {"budget_s", options.budget_s},
                         {"sample_s", options.sample_s},   {"warmup_calls", options.warmup_calls},
                         {"tolerance", options.tolerance}, {"seed", options.seed}};
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);  // Names may be no UTF-8.
}

std::string report_text(const FunctionComparison& comparison) {
  return compare_text(report_of(comparison));
}

}  // namespace headrace
