// Two versions of a job that were compared, as a page like a report's: values, which `insight/compare` fills.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct ComparisonPage {
  struct Metric {
    std::string name;
    std::string old_value, new_value;  // With their unit; empty: unavailable.
    std::string verdict;               // "regressed", "improved", "equivalent", "inconclusive", "missing".
    std::string sentence;              // The verdict with its figures: "inconclusive: about 23 pairs more ...".
    std::string change;                // With its interval; empty: unavailable.
    bool is_share = true;              // Changes are shares of the old value: 0.03 is 3 %. Else in the metric's unit.
    std::optional<double> middle, low, high;  // Of the change; nullopt or not finite: unknown.
    double tolerance = 0.02;                  // On the same scale, above 0.
    std::vector<double> pairs{};              // The change in each pair, in order; empty: there are none.
  };
  struct Stage {  // A part of a step.
    std::string sentence;
    bool has_changed = false;
  };
  std::string old_label, new_label;
  std::string verdict;  // One sentence, first on the page.
  bool is_positive = false;
  std::string basis;               // "24 pairs", "stored runs".
  std::vector<std::string> notes;  // Drifts over a history, and what holds for all figures.
  std::vector<Metric> metrics;     // Empty: nothing was compared.
  std::vector<Stage> stages;       // The largest change first.
  std::string stages_note;         // What they are of; empty: of the same pairs.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string command;  // Reproduces it.
  std::string written;  // UTC time.
};

// One HTML file, as report_html() writes them: no script, no request, every text escaped, below 1.5 MB. The table has
// 100 metrics, 20 of them a chart of their pairs (at most 200 dots); those that have become worse, or are not decided,
// come before the others, and how many are left out is said.
std::string comparison_html(const ComparisonPage& page);

}  // namespace headrace
