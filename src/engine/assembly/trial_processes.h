// A job in two processes, one of which runs at a time: how settings that only a process can begin with are timed.
#pragma once

#include <headrace/job.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace headrace {

// One of them.
class TrialArm {
 public:
  virtual ~TrialArm() = default;
  // Seconds of each step. From its snapshot, or from where it stands.
  virtual std::vector<double> run(std::int64_t steps, bool from_snapshot) = 0;
  virtual std::uint64_t state_hash() = 0;
  // Between the two it takes no core at all.
  virtual void pause() = 0;
  virtual void resume() = 0;
};

// What Job::in_processes() promises. An arm is started when it is configured for the first time. Whoever waits here
// waits in poll() and takes no core either.
//
// The arm that is not timed is stopped as a whole (SIGSTOP), because nothing less leaves the cores to the other one: by
// the wait policy that is on trial its idle compute threads may spin for minutes, and its loader fills its queue.
class TrialProcesses final : public Job {
 public:
  using Start = std::function<std::unique_ptr<TrialArm>(const Settings&)>;

  TrialProcesses(Settings first, Settings second, std::int64_t samples_per_step, Start start);

  // Error{invalid_argument}: the settings are neither of the two. Else what `start` throws.
  void configure(const Settings& settings) override;
  void restore() override { from_snapshot_ = true; }
  std::vector<double> run(std::int64_t steps) override;
  std::uint64_t state_hash() override;
  std::int64_t samples_per_step() const override { return samples_per_step_; }

  void snapshot() override {}  // Each arm has its own, from the start.
  // Error{unsupported}. Nobody asks: what needs a new process is judged by its bits.
  Fingerprint fingerprint(std::int64_t batch) override;
  double update_difference(const Settings& a, const Settings& b) override;

 private:
  struct Arm {
    Settings settings;
    std::unique_ptr<TrialArm> process;  // Null: not started.
  };

  std::array<Arm, 2> arms_;
  std::int64_t samples_per_step_;
  Start start_;
  TrialArm* running_ = nullptr;  // Null: no arm is, or the one that was asked for could not be started.
  bool from_snapshot_ = false;   // At the next run().
};

}  // namespace headrace
