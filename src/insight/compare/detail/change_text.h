// The figures of a verdict as text, the same in every form of a report.
#pragma once

#include <string>

#include "insight/compare/compare_report.h"

namespace headrace {

std::string pairs_text(const CompareVerdict& verdict);                                    // "24 pairs", "stored runs".
std::string value_text(const MetricVerdict& metric, const std::optional<double>& value);  // "12.3 ms", "unavailable".
// "+3.1 % (95 %: +2.4 % to +3.9 %)", of differences "-0.0100 (95 %: ...)"; "unavailable" where the metric is missing.
std::string interval_text(const MetricRule& rule, const std::optional<Interval>& interval);
// "regressed", "inconclusive: about 23 pairs more would decide it".
std::string change_text(const MetricVerdict& metric);
std::string stage_text(const StageChange& stage);  // "forward +2.9 % of a step (95 %: ...), 10.1 ms to 10.4 ms".
std::string drift_text(const MetricDrift& drift);

}  // namespace headrace
