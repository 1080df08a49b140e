// One change at a time, measured against the best configuration so far, kept only when it is faster and numerically the
// same.
//
// The tuner knows settings as recipe keys and values, and measures; a Job supplies both: headrace's own from a recipe,
// Python's from the user's objects, or one of yours (examples/cpp/tune_a_loop.cpp). Everything here runs on the calling
// thread.
#pragma once

#include <headrace/job.h>
#include <headrace/ledger.h>
#include <headrace/options/tune.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace {

// When a change can take effect in a run that goes on.
enum class Switches {
  live_step,    // Between two steps.
  live_epoch,   // Between two epochs.
  rebuild,      // Once what it is about has been made anew: a loader, a compiled network.
  new_process,  // In a process that starts with it: timed by Job::in_processes(), and always bit_equal.
};
const char* to_string(Switches switches) noexcept;

struct Candidate {
  std::string name;      // "fused optimizer": in tables, the ledger and --tune.only.
  std::string sentence;  // What it changes, for a person.
  Settings changes;      // On top of the configuration it is tried on.
  NumericClass numerics = NumericClass::rounding;
  std::string resource;  // What it relieves: "compute", "data", "memory". Tried first when the diagnosis names it.
  // The share of the run (0 to below 1) that is over before the change pays: 1 / epochs for a cache that the first
  // epoch fills. It is measured in full effect; in its gain this share of the run counts as slow as without it.
  double late_share = 0;
  // It changes nothing but how many threads or processes work: what pays then depends on what else the machine does,
  // so that it is not tried while others take the cores.
  bool divides_cores = false;
  std::string key{};  // Of the knob, which names the candidate to others: a change may set further keys.
  // Keys of knobs beside which it does nothing: not tried while one is kept, and in a run under way replaced by one
  // that is kept later.
  std::vector<std::string> excludes{};
  Switches switches = Switches::live_step;
  // Typical seconds, until they are measured: to make what the change needs, and of each switch to it or back.
  double prepare_s = 0, switch_s = 0;
  std::string prepare_note{};  // Where prepare_s is from, behind it in a sentence: "as 3 compilations here took".
  // What was prepared under one setting is used up under the other, as the batches in a loader's queue.
  bool carries_over = false;
  // The batches that it brings hold other pixels or are drawn otherwise. Its numerics are then judged by the mean
  // gradients of batches, each side's as it loads them, and `numerics` only says what TuneOptions::allow it needs.
  bool changes_batches = false;
  // Its place in the order of promise, lowest first: a run under way whose machine is not quiet tries the first few of
  // all, whatever order they are tried in. 0, before all others, of one that no table knows: its author asks for it.
  std::int64_t promise_rank = 0;
};

// Told what happens while it happens; empty functions are not called.
struct TuneProgress {
  std::function<void(const Quietness&)> judged;  // Before the first trial.
  std::function<void(const Candidate&, std::size_t index, std::size_t count)> trying;
  std::function<void(const Trial&)> decided;  // Again for a trial that was open, or whose kept change is taken out.
  std::function<bool()> stop;                 // True: ends after the pair at hand; candidates left are inconclusive.
};

// Tries the candidates in order, which is that of their promise: on a machine that is not quiet the budget goes to as
// many of the first as it can decide, and the others are left out (Reason::not_quiet). `seed` decides the order within
// each pair. Afterwards the job has the best settings and the snapshot's state. Rethrows Error{cancelled} never: a stop
// ends with what is known. What the job throws under the baseline's own settings is rethrown; Error{invalid_argument}
// when options.only names no candidate.
Ledger tune(Job& job, const std::vector<Candidate>& candidates, const TuneOptions& options, std::uint64_t seed,
            const TuneProgress& progress = {});

}  // namespace headrace
