// What `tune` starts to time settings that only a process can begin with: it makes steps when it is told to.
#include <headrace/error.h>

#include <memory>
#include <string>

#include "app/knobs/strategy_library.h"
#include "core/base/fail.h"
#include "core/exec/control_channel.h"
#include "core/hardware/wait_policy.h"
#include "engine/assembly/training_job.h"
#include "engine/assembly/trial_answers.h"
#include "engine/assembly/trial_protocol.h"
#include "engine/verbs/verbs.h"

namespace headrace {
namespace {

// main() has run the executable again by now, and only warns where that did not help.
void check_wait_policy(WaitPolicy wanted) {
  const Applied found = wait_policy_in_force(wanted);
  if (found.reason.empty()) return;
  fail(ErrorCode::unsupported, "{} = {} is not applied ({}): {}", found.key, found.requested, found.applied,
       found.reason);
}

std::unique_ptr<Job> job_of_trial(const VerbContext& context) {
  const Recipe& recipe = context.loaded.recipe;
  check_wait_policy(recipe.compute.wait_policy);
  load_strategies(recipe.tune.strategies);
  auto job = std::make_unique<TrainingJob>(recipe, context.machine);
  Settings settings(context.invocation.settings.begin(), context.invocation.settings.end());
  if (const auto index = settings.find(std::string(trial::kIndexKey)); index != settings.end()) {
    job->training().use_trial_index(index->second);
    settings.erase(index);
  }
  job->configure(settings);
  return job;
}

}  // namespace

int run_trial_process(VerbContext& context) {
  const ControlChannel parent{Descriptor{trial::kControl}};
  answer_trial(parent, trial::kSlot, [&] { return job_of_trial(context); });
  return kExitDone;
}

}  // namespace headrace
