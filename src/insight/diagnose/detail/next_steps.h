// What a report's reader should look at next.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/report.h>

#include <vector>

namespace headrace::detail {

// Settings that are not in force as requested, then the diagnosis' findings, then changes that were left open. The
// texts are the report's own: neither cleaned nor escaped.
std::vector<Finding> next_steps(const Report& report);

}  // namespace headrace::detail
