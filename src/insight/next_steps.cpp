#include "insight/detail/next_steps.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::detail {

std::vector<Finding> next_steps(const Report& report) {
  std::vector<Finding> steps;
  for (const Applied& setting : report.settings) {
    if (setting.requested == setting.applied) continue;
    steps.push_back({"setting_not_applied",
                     fmt::format("{} is {}, not {} as requested.", setting.key, setting.applied, setting.requested),
                     setting.reason});
  }
  steps.insert(steps.end(), report.findings.begin(), report.findings.end());
  const auto open = std::count_if(report.changes.begin(), report.changes.end(),
                                  [](const Report::Change& change) { return change.verdict == "inconclusive"; });
  if (open > 0) {
    steps.push_back({"changes_left_open",
                     fmt::format("{} {} left open.", open, open == 1 ? "change was" : "changes were"),
                     "A larger tune.budget_s gives more pairs."});
  }
  return steps;
}

}  // namespace headrace::detail
