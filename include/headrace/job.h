// A job that can be measured under different settings: the tuner's only view of the world.
#pragma once

#include <headrace/options/tune.h>
#include <headrace/time_split.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

const char* to_string(NumericClass numeric_class) noexcept;

// Recipe keys and their values as TOML text: {"optimizer.fused", "true"}.
using Settings = std::map<std::string, std::string>;

// Loss and gradients of one forward and backward on one batch, from the snapshot's state.
template <class Number>
struct BasicFingerprint {
  struct Gradient {
    std::string name;
    std::vector<Number> values;
  };
  double loss = 0;
  std::vector<Gradient> gradients;
};
using Fingerprint = BasicFingerprint<float>;
using ExactFingerprint = BasicFingerprint<double>;  // Computed in float64: what rounding keeps float32 away from.

struct ExactResult {
  std::optional<ExactFingerprint> fingerprint;
  std::string why_not;  // For a person, where there is none.
};

// A training or serving job that can be measured under different settings. The tuner's only view of the world.
class Job {
 public:
  virtual ~Job() = default;
  // Parameters, buffers, optimizer, generators and data position as they are now; restore() puts them back, any number
  // of times. Thrown exceptions inside run() leave the job restorable.
  virtual void snapshot() = 0;
  virtual void restore() = 0;
  // Makes exactly these settings hold (keys not named: as the recipe wrote them). Throws Error when one cannot be
  // applied; the job is then as before.
  virtual void configure(const Settings& settings) = 0;
  // Runs this many steps on the next batches and returns the wall seconds of each step, data wait included. Before each
  // block of steps the tuner calls configure() and then restore(); after an exception restore() comes first.
  virtual std::vector<double> run(std::int64_t steps) = 0;
  struct SplitRun {
    std::vector<double> step_s;      // What run() returns.
    std::optional<TimeSplit> split;  // Of these seconds; nullopt: unavailable.
  };
  // run(), and what the steps spent their time on. The last comparison, of best and baseline, is made of these.
  virtual SplitRun run_split(std::int64_t steps) { return {run(steps), std::nullopt}; }
  // On batch `batch` (0, 1, ... of a fixed order) from the present state, which it leaves as it was.
  virtual Fingerprint fingerprint(std::int64_t batch) = 0;
  // On batch `batch` (0, 1, ... of an epoch, going on in further ones) as the settings in force load it,
  // from the present state, which it leaves as it was, also by an exception. For settings that change what batches
  // hold (Candidate::changes_batches); the default is for a job that has none.
  virtual Fingerprint fingerprint_as_loaded(std::int64_t batch) { return fingerprint(batch); }
  // The same as the recipe as written computes it, but in float64, with the same random draws. It leaves the state as
  // it was; after an exception restore() comes first.
  virtual ExactResult exact_fingerprint(std::int64_t /*batch*/) {
    return {std::nullopt, "this job has no float64 form"};
  }
  // Every parameter and buffer of the present state, for bit_equal.
  virtual std::uint64_t state_hash() = 0;
  // Largest relative L2 difference of parameters and optimizer state between the update under `a` and under `b` from
  // the same snapshot on the same given gradients (class rounding; tolerance 1e-6). 0 when the update does not depend
  // on the settings.
  virtual double update_difference(const Settings& a, const Settings& b) = 0;
  virtual std::int64_t samples_per_step() const = 0;
  // For settings that no running process can take (Switches::new_process), which configure() of this job never gets:
  // the same job in two processes, one that starts with `first` and one with `second`, from one state on the same
  // samples. configure() of that job takes these two alone, starts their process where there is none, which takes
  // seconds, and lets no other one run meanwhile; restore(), run() and state_hash() are asked of it beside. Its
  // processes end with it, at the latest with this process. This job must outlive it. Null: it has no such processes.
  virtual std::unique_ptr<Job> in_processes(const Settings& /*first*/, const Settings& /*second*/) { return nullptr; }
};

}  // namespace headrace
