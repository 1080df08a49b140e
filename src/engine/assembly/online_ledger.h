// The ledger of a training that tunes itself, over the processes that make it.
#pragma once

#include <headrace/live_tuner.h>

#include <cstdint>

namespace headrace {

// `settings`, and over them `changes`.
Settings with_changes(Settings settings, const Settings& changes);

// Of a checkpoint's ledger what holds on in a process that goes on at that checkpoint, after so many updates: the turns
// up to there, one more that puts into force what was kept, and the changes that are decided. All others are open, and
// can be tried anew. The ledger is not ended.
LiveLedger resumed_ledger(LiveLedger saved, std::int64_t updates);

// Seconds that the run is behind as far as `resumed` tells, at least 0.
double behind_s(const LiveLedger& resumed);

// Both as one: `now` is the ledger of a tuner for which the loop as written is the recipe with what `resumed` kept, and
// whose budget is smaller by behind_s(). What all kept changes gain together is known where one side kept nothing.
LiveLedger joined_ledger(LiveLedger resumed, LiveLedger now);

}  // namespace headrace
