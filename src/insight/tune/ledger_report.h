// A ledger as the part of a report that tells what was tried and what came of it.
#pragma once

#include <headrace/error.h>
#include <headrace/report.h>
#include <headrace/tune.h>

#include <span>
#include <string_view>
#include <vector>

namespace headrace {

// Fills verdict, positive, disturbance, the speedup, both speeds, the changes, the budget and, where best and baseline
// were compared, both time splits; `candidates` are those that were tried, whose sentences the ledger does not hold.
// `subject` is what was tuned: "the recipe as written".
void show_ledger(Report& report, const Ledger& ledger, std::span<const Candidate> candidates, std::string_view subject);

// Of every change that was left out because the machine is not quiet: what it would have set, what stays and why.
std::vector<Applied> settings_left_out(const Ledger& ledger);

}  // namespace headrace
