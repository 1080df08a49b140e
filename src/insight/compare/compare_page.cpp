#include <cstddef>
#include <optional>
#include <string>

#include "insight/compare/compare_report.h"
#include "insight/compare/detail/change_text.h"
#include "insight/diagnose/comparison_page.h"

namespace headrace {
namespace {

// `row` is the metric's place in each of report.pairs; nullopt: it has none there.
ComparisonPage::Metric page_metric(const MetricVerdict& metric, const CompareReport& report,
                                   std::optional<std::size_t> row) {
  ComparisonPage::Metric shown{.name = metric.rule.name,
                               .old_value = value_text(metric, metric.old_value),
                               .new_value = value_text(metric, metric.new_value),
                               .verdict = to_string(metric.change),
                               .sentence = change_text(metric),
                               .change = interval_text(metric.rule, metric.interval),
                               .is_share = !metric.rule.is_absolute,
                               .middle = {},
                               .low = {},
                               .high = {},
                               .tolerance = metric.rule.tolerance};
  if (metric.interval) {
    shown.middle = metric.interval->median;
    shown.low = metric.interval->low;
    shown.high = metric.interval->high;
  }
  if (!row) return shown;
  for (const PairEffects& pair : report.pairs) shown.pairs.push_back(change_of(metric.rule, pair.at(*row)));
  return shown;
}

}  // namespace

std::string compare_html(const CompareReport& report) {
  const CompareVerdict& verdict = report.verdict;
  ComparisonPage page{.old_label = report.old_label,
                      .new_label = report.new_label,
                      .verdict = conclusion(report),
                      .is_positive = !report.is_failure() && verdict.is_settled(),
                      .basis = pairs_text(verdict),
                      .notes = {},
                      .metrics = {},
                      .stages = {},
                      .stages_note = {},
                      .environment = report.machine,
                      .command = report.command,
                      .written = report.written};
  for (const MetricDrift& drift : report.drifts) page.notes.push_back("History: " + drift_text(drift));
  page.notes.insert(page.notes.end(), verdict.remarks.begin(), verdict.remarks.end());
  std::size_t row = 0;
  for (const MetricVerdict& metric : verdict.metrics) {
    const bool has_pairs = metric.change != MetricChange::missing && !report.pairs.empty();
    page.metrics.push_back(page_metric(metric, report, has_pairs ? std::optional(row++) : std::nullopt));
  }
  for (const StageChange& stage : verdict.stages) page.stages.push_back({stage_text(stage), stage.has_changed});
  if (verdict.stages_are_of_one_pair) page.stages_note = "Of one further pair, which no metric here is of.";
  return comparison_html(page);
}

std::string failed_html(const std::string& old_label, const std::string& new_label, const std::string& reason) {
  ComparisonPage page;
  page.old_label = old_label;
  page.new_label = new_label;
  page.verdict = "Nothing was compared: " + reason;
  return comparison_html(page);
}

}  // namespace headrace
