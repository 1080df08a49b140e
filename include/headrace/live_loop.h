// A training run under way, in which changes are tried between the user's own updates: the live tuner's only view of
// it.
//
// Nothing is kept from one trial to the next and nothing is put back: what is measured are the steps that the run would
// have made anyway. The headrace::Job of <headrace/job.h> is the other form of a trial, on a snapshot.
#pragma once

#include <headrace/error.h>
#include <headrace/job.h>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

// From one update to the next, everything that the user waits for in between included.
struct LiveUnit {
  // Number of the newest update of the run, from 1 on: what is applied now holds from the next one on. It is the one
  // that ends the unit, unless a device works behind its host: then units are told as their times become known, in
  // their order, and those that were launched before the newest switch do not count.
  std::int64_t update = 0;
  // From the moment at which LiveTuner::after_update() was called last to the one at which it is called with this unit:
  // a switch of settings belongs to the unit behind it, replays to the unit in which they were made.
  double seconds = 0;
  double work = 1;    // What its time grows with, as numbers in its batch; above 0, the same in every unit if unknown.
  double wait_s = 0;  // Of `seconds`, waiting for the loader.
  bool countable = true;
  std::string why_not{};  // Where it is not: "evaluation", "an epoch began", "4 micro-batches, not 8".
};

// Gradients of one kept call under two settings.
struct ReplayDistance {
  double relative_l2 = 0;        // Of all gradients together, relative to the reference's.
  double cosine = 1;             // Between the two.
  double worst_tensor = 0;       // Largest relative L2 of a tensor that holds at least 1e-3 of the reference's norm.
  std::string worst_name{};      // Of that tensor.
  double output_difference = 0;  // Relative L2 of what the call returned.
  bool finite = true;            // Every number of outputs and gradients under the candidate's settings.
  bool bit_equal = false;        // Outputs and gradients, every bit.
  // The candidate draws random numbers (dropout) in another order, as other layouts in memory do; for the comparison
  // they were drawn in the reference's.
  bool other_draws = false;
  double seconds = 0;  // That the candidate's forward and backward took.
  // Largest relative L2 of parameters and optimizer state after one update on copies with the same gradients; nullopt:
  // it does not depend on the change.
  std::optional<double> update_difference{};
};

// A replay that could not be made: an exception under the candidate's settings, too little memory. `unsupported`, where
// the reference replayed against itself fails too: the kept call cannot be made again, and no change is to blame. The
// tuner then asks for other calls, and gives up the changes that wait for one after 16 of them.
struct ReplayFailure {
  ErrorCode code = ErrorCode::internal;
  std::string sentence;
};

struct Replay {
  std::optional<ReplayDistance> distance;
  ReplayFailure failure{};  // Where there is no distance.
};

// What is asked of a replay. Of `compare` the distances: a device whose arithmetic for 32-bit floats is less precise
// than they are where the loop leaves it that (TF32 in cuDNN's convolutions) replays in full precision, since its own
// rounding would be larger than what is to be seen. Of `time` the seconds: as the loop computes.
enum class ReplayUse { compare, time };

// What it throws passes through the tuner unchanged, but for the Error that apply() is allowed.
class LiveLoop {
 public:
  virtual ~LiveLoop() = default;
  // Makes exactly these settings hold (keys not named: as the user's loop has them). Called between two updates, or
  // where the caller of LiveTuner::failed(), stop() or undo() stands. Throws Error where one cannot be applied, which
  // is the change's failure, and anything else where the run is over; whatever it throws, the run is then as before.
  virtual void apply(const Settings& settings) = 0;
  // The call that was kept in the unit at hand, forward and backward with the gradients that arrived at its outputs,
  // under both settings. Called in LiveTuner::before_update() alone, several times for one kept call. Parameters,
  // buffers, gradients and generators are afterwards as they were, and the settings that were in force are in force
  // again, also where it throws. The reference's gradients are kept for the next replay of the same call. Exceptions of
  // the user's code under `candidate` are a failure, not thrown. With candidate = reference it tells what the loop as
  // written takes and how far it is from itself.
  virtual Replay replay(const Settings& reference, const Settings& candidate, ReplayUse use) = 0;
  // Relative L2 distance between the reference's gradients of the call at hand and of the one kept before it, as the
  // loop itself computed them: how much gradients differ from batch to batch. nullopt: only one call was kept so far.
  virtual std::optional<double> distance_between_calls() = 0;
  // Updates that the run still has; nullopt: unknown. Asked once a pair of blocks.
  virtual std::optional<std::int64_t> updates_left() = 0;
  // Units whose batches a loader may hold ready at most: what was loaded under the settings before those in force is
  // used up after so many. 0: it loads nothing ahead, or nobody knows. Asked when the search begins, and while the loop
  // waits for data or changes of loading take turns, behind each switch to a block's settings, which may change it. The
  // same on all ranks.
  virtual std::int64_t queued_units() { return 0; }
  // Units that the host has given a device ahead of what that has done, at most lately. A device that still has those
  // of slower settings shows of faster ones only what itself takes, and not that it will wait for the host. 0: no
  // device works behind the host. Asked at each block of a pair; ranks need not say the same.
  virtual std::int64_t units_ahead() { return 0; }
  // Whether all ranks say yes. The tuners of all ranks ask the same questions in the same order, two an update while a
  // block is measured and more between pairs; no time of one rank alone steers them, so that all switch at the same
  // updates. failed(), stop() and undo() ask nothing: they are called on every rank at the same update.
  virtual bool agree(bool yes) { return yes; }
};

}  // namespace headrace
