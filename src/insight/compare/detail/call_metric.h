// The only metric of compared functions.
#pragma once

#include "insight/compare/metric_rule.h"

namespace headrace {

inline constexpr const char* kCallSeconds = "call_s";

inline MetricChoices call_choices(double tolerance) {
  return {.only = {kCallSeconds}, .higher_is_better = {}, .absolute = {}, .tolerances = {{kCallSeconds, tolerance}}};
}

}  // namespace headrace
