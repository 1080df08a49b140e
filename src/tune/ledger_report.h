// A ledger as the part of a report that tells what was tried and what came of it.
#pragma once

#include <headrace/insight.h>
#include <headrace/tune.h>

#include <span>
#include <string_view>

namespace headrace {

// Fills verdict, positive, the speedup, both speeds, the changes, the budget and, where best and baseline were
// compared, both time splits; `candidates` are those that were tried, whose sentences the ledger does not hold.
// `subject` is what was tuned: "the recipe as written".
void show_ledger(Report& report, const Ledger& ledger, std::span<const Candidate> candidates, std::string_view subject);

}  // namespace headrace
