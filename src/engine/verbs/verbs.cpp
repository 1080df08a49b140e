#include "engine/verbs/verbs.h"

#include <headrace/report.h>
#include <torch/headeronly/version.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/cli/environment.h"
#include "app/cli/recipe_from_data.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/exec/stop.h"
#include "torch/tensor/translate.h"

namespace headrace {
namespace {

int dispatch(VerbContext& context) {
  const std::string& verb = context.invocation.verb;
  if (verb == "train") return run_train(context);
  if (verb == "eval") return run_eval(context);
  if (verb == "profile") return run_profile(context);
  if (verb == "tune") return run_tune(context);
  if (verb == kTrialVerb) return run_trial_process(context);
  fail(ErrorCode::invalid_argument, "headrace: no verb {}", verb);
}

int run_verb(const Invocation& invocation, Console& console) {
  LoadedRecipe loaded = recipe_of(invocation);
  const RunSettings settings{loaded.recipe.compute};
  VerbContext context{invocation, console, std::move(loaded), detect_machine(), settings};
  return dispatch(context);
}

}  // namespace

std::string command_line(const Invocation& invocation) {
  std::string line;
  for (std::size_t i = 0; i < invocation.argv.size(); ++i) {
    std::string word = i == 0 ? "headrace" : without_credentials(invocation.argv[i]);
    if (word.empty() || word.find_first_of(" \t\n\"'\\$&|;<>()*?[]#~`!{}") != std::string::npos) {
      std::string quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = quoted + "'";
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

nlohmann::ordered_json document_head(const VerbContext& context, const char* format) {
  nlohmann::ordered_json document{{"format", format}, {"version", 1}};
  document["recipe"] = context.loaded.name;
  document["command"] = command_line(context.invocation);
  document["written"] = utc_text();
  for (const auto& [name, value] : report_environment(context.machine, TORCH_VERSION))
    document["environment"][name] = value;
  return document;
}

}  // namespace headrace

extern "C" int headrace_run_verb(const headrace::Invocation* invocation) {
  using namespace headrace;
  Console console{*invocation};
  int code = kExitFailed;
  try {
    code = run_verb(*invocation, console);
  } catch (...) {
    console.clear_progress();
    const Error error = translate(std::current_exception());
    if (error.code() == ErrorCode::cancelled && stop_signal() != 0) {
      console.error(invocation->verb + ": stopped by a signal before there was a result");
      code = stop_exit_code(stop_signal());
    } else {
      console.error(error.what());
      code = error.code() == ErrorCode::invalid_argument ? kExitUsage : kExitFailed;
    }
  }
  return console.finish(code);
}
