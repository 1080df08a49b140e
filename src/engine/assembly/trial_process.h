// The parent's side of a process that makes steps for a trial.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/exec/child_process.h"
#include "core/exec/control_channel.h"
#include "core/exec/shared_memory.h"
#include "engine/assembly/trial_processes.h"

namespace headrace {

struct TrialCommand {
  std::vector<std::string> arguments;  // The program first.
  std::string recipe;                  // TOML: what it reads at trial::kRecipe.
  std::string name;                    // For messages: "compute.wait_policy = \"active\"".
  std::chrono::milliseconds timeout;   // In which it must be ready, and answer each question.
};

// The process lives as long as this object, and no longer than ours. What it does wrong (it ends, gives no answer in
// time, says what makes no sense) is Error{internal} and its end; what its job throws is an Error with the job's own
// code; Error{cancelled} once a signal asked our process to stop. All but that name the process by `name`.
class TrialProcess final : public TrialArm {
 public:
  // Waits until it is ready.
  explicit TrialProcess(TrialCommand command);
  // Lets it end by itself for two seconds at most, so that it takes its temporary files along, and kills it then.
  ~TrialProcess() override;

  std::vector<double> run(std::int64_t steps, bool from_snapshot) override;
  std::uint64_t state_hash() override;
  void pause() override { child_->pause(); }
  void resume() override { child_->resume(); }

 private:
  ControlMessage ask(const ControlMessage& question, std::uint32_t wanted);
  ControlMessage answer(std::uint32_t wanted);
  [[noreturn]] void refuse(const ControlMessage& failure) const;
  [[noreturn]] void lose(const std::string& how) const;

  const TrialCommand command_;
  const SharedMemory recipe_, slot_;
  std::unique_ptr<ControlChannel> channel_;
  std::unique_ptr<ChildProcess> child_;  // Last: it ends first.
};

}  // namespace headrace
