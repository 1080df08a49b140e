// What a report says of the changes that a tuning tried.
#pragma once

#include <headrace/report.h>

#include <string>

namespace headrace::detail {

// From before to after, change by change, and the pairs that the speedup is from.
std::string gains_html(const Report& report);
// Each change with its verdict, interval and reason, and what was not tried.
std::string changes_html(const Report& report);

}  // namespace headrace::detail
