#include <headrace/trainer.h>

#include <nlohmann/json.hpp>

#include "assembly/training.h"
#include "train/checkpoint.h"
#include "verbs/verbs.h"

namespace headrace {
namespace {

CheckpointInfo load(VerbContext& context, Training& training) {
  const std::string& model = context.loaded.recipe.model.name;
  if (!context.invocation.checkpoint) {
    fail(ErrorCode::invalid_argument, "eval: --checkpoint FILE or FOLDER is needed");
  }
  const std::filesystem::path& path = *context.invocation.checkpoint;
  if (!std::filesystem::is_directory(path))
    return load_checkpoint(path, training.trainer(), model, /*weights_only=*/true);
  std::vector<std::string> warnings;
  const std::optional<CheckpointInfo> info = resume_newest(path, training.trainer(), model, warnings);
  for (const std::string& warning : warnings) context.console.warning(warning);
  if (!info) fail(ErrorCode::not_found, "eval: {}: no checkpoint that loads", path.string());
  return *info;
}

}  // namespace

int run_eval(VerbContext& context) {
  Console& console = context.console;
  Training training{context.loaded.recipe, context.machine};
  const CheckpointInfo info = load(context, training);
  if (context.invocation.dry_run) {
    console.info(fmt::format("dry run: {} fits {}; nothing was evaluated", info.path.string(), info.model));
    return kExitDone;
  }
  const Evaluation evaluation = evaluate(training.trainer(), training.test_loader());
  console.result(fmt::format("{}: test accuracy {:.4f}, loss {:.4f}, {} samples\n", info.path.filename().string(),
                             evaluation.accuracy, evaluation.loss, evaluation.samples));
  nlohmann::ordered_json document = document_head(context, "headrace-eval");
  document["checkpoint"] = info.path.string();
  document["test_accuracy"] = evaluation.accuracy;
  document["test_loss"] = evaluation.loss;
  document["samples"] = evaluation.samples;
  const double least = context.loaded.recipe.eval.at_least;
  document["at_least"] = least;
  console.json(document);
  if (!(evaluation.accuracy >= least)) {
    console.error(fmt::format("eval: test accuracy {:.4f} is below eval.at_least = {}", evaluation.accuracy, least));
    return kExitVerdict;
  }
  return kExitDone;
}

}  // namespace headrace
