// When what a live run tried was in force, as its report shows it.
#pragma once

#include <headrace/live_tuner.h>
#include <headrace/report.h>

#include <optional>

namespace headrace {

// A row for each trial whose changes all were in force in some turn, in the ledger's order. nullopt: no turn was made,
// or no update told. Turns that begin behind the last update told are left out. Pure.
std::optional<Report::Course> course_of(const LiveLedger& ledger);

}  // namespace headrace
