// A comparison as people and programs read it: text, an HTML page, Markdown for a pull request, JUnit's XML, JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "insight/compare/compare_verdict.h"
#include "insight/compare/drift.h"
#include "insight/compare/resampling.h"

namespace headrace {

// A drift of a metric over the builds of a history.
struct MetricDrift {
  MetricRule rule;
  std::string first_label, last_label, largest_label;
  std::size_t builds = 0;  // Steps from the first to the last.
  Drift drift;
  bool is_new = false;  // The build that was compared now belongs to it.

  // It has become worse, and this comparison is a part of it.
  bool is_failure() const { return is_new && drift.effect > 0; }
};

struct CompareReport {
  std::string old_label, new_label;
  std::string command, written;
  std::vector<std::pair<std::string, std::string>> machine;
  CompareVerdict verdict;
  std::vector<PairEffects> pairs;  // Of the metrics that are not missing, in their order; empty: of stored runs.
  std::vector<MetricDrift> drifts;

  // Exit code 3.
  bool is_failure() const;
};

// One sentence: "NEW is worse than OLD: step_p50_s +3.1 % (95 %: +2.4 % to +3.9 %)".
std::string conclusion(const CompareReport& report);
// Labels and names come from others: control characters become "?".
std::string compare_text(const CompareReport& report);
// They are escaped here, and in the XML.
std::string compare_markdown(const CompareReport& report);
// A test case a metric, one for outputs, one a drift. Regressions, what is missing, wrong outputs and drifts fail; what
// is inconclusive is skipped with the pairs that it needs.
std::string compare_junit(const CompareReport& report);
// The same where there is no verdict: one case, with an error, so that nobody takes "not run" for "passed".
std::string failed_junit(const std::string& old_label, const std::string& new_label, const std::string& reason);
std::string failed_markdown(const std::string& old_label, const std::string& new_label, const std::string& reason);
std::string failed_html(const std::string& old_label, const std::string& new_label, const std::string& reason);
// A page with the pairs drawn (insight/diagnose/comparison_page.h).
std::string compare_html(const CompareReport& report);
// Format headrace-compare, version 1.
nlohmann::ordered_json compare_json(const CompareReport& report);

}  // namespace headrace
