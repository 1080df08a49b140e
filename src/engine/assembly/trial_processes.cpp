#include "engine/assembly/trial_processes.h"

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

TrialProcesses::TrialProcesses(Settings first, Settings second, std::int64_t samples_per_step, Start start)
    : arms_{Arm{std::move(first), nullptr}, Arm{std::move(second), nullptr}},
      samples_per_step_(samples_per_step),
      start_(std::move(start)) {}

void TrialProcesses::configure(const Settings& settings) {
  const auto arm =
      std::find_if(arms_.begin(), arms_.end(), [&](const Arm& known) { return known.settings == settings; });
  if (arm == arms_.end()) fail(ErrorCode::invalid_argument, "tune: a trial's processes have no such settings");
  if (running_ != nullptr && running_ == arm->process.get()) return;
  if (running_ != nullptr) std::exchange(running_, nullptr)->pause();
  if (arm->process == nullptr) {
    arm->process = start_(arm->settings);
  } else {
    arm->process->resume();
  }
  running_ = arm->process.get();
}

std::vector<double> TrialProcesses::run(std::int64_t steps) {
  HEADRACE_CHECK(running_ != nullptr, "run() of a trial's processes without configure()");
  return running_->run(steps, std::exchange(from_snapshot_, false));
}

std::uint64_t TrialProcesses::state_hash() {
  HEADRACE_CHECK(running_ != nullptr, "state_hash() of a trial's processes without configure()");
  return running_->state_hash();
}

Fingerprint TrialProcesses::fingerprint(std::int64_t /*batch*/) {
  fail(ErrorCode::unsupported, "tune: a trial's processes tell no gradients");
}

double TrialProcesses::update_difference(const Settings& /*a*/, const Settings& /*b*/) {
  fail(ErrorCode::unsupported, "tune: a trial's processes compare no updates");
}

}  // namespace headrace
