// The verbs that train: what each has in hand, and their entry points.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "app/cli/console.h"
#include "app/cli/invocation.h"
#include "app/cli/run_folder.h"
#include "app/recipe/recipe.h"
#include "core/hardware/machine.h"
#include "engine/assembly/run_settings.h"

namespace headrace {

struct VerbContext {
  const Invocation& invocation;
  Console& console;
  LoadedRecipe loaded;
  Machine machine;
  const RunSettings& settings;  // In force until the verb has ended.
};

// Between two readings of memory in verbs that run for minutes or hours.
inline constexpr std::chrono::milliseconds kMemoryInterval{50};

// Each returns the exit code and throws Error for what it cannot do.
int run_train(VerbContext& context);
int run_eval(VerbContext& context);
int run_profile(VerbContext& context);
int run_tune(VerbContext& context);
int run_trial_process(VerbContext& context);  // kTrialVerb

// "headrace tune examples/fashion_mnist.toml --data.num_workers 2", credentials cut.
std::string command_line(const Invocation& invocation);
// {"title", "command", "written", "environment": {...}, "settings": [...]}: what every --json document starts with.
nlohmann::ordered_json document_head(const VerbContext& context, const char* format);

}  // namespace headrace
