// The ledger of a run that was tuned while it was under way, as the part of a report that tells of it.
#pragma once

#include <headrace/live_tuner.h>
#include <headrace/report.h>

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

namespace headrace {

// Fills what show_ledger() fills, in words of a run under way: the verdict is of the proofs alone, a change that was
// not proved has the gain that it showed while all took turns, one that is open says what would decide it, one that
// `allow` forbids which `allow` it needs. The note tells what the search cost, the findings what to do about changes
// left. Nothing is computed of single gains that was not measured as one: changes that were kept one after the other
// have no common speedup unless their pairs were run. Pure; `candidates` and `subject` as in show_ledger().
void show_live_ledger(Report& report, const LiveLedger& ledger, std::span<const Candidate> candidates,
                      std::string_view subject);

// ledger.json of such a run: json_text(LiveLedger) with what the report says of it: title, command, environment,
// settings, what was not tried; and what went wrong, null where `problem` is empty.
nlohmann::ordered_json live_document(const LiveLedger& ledger, const Report& report, std::string_view problem);

}  // namespace headrace
