#include <headrace/trainer.h>
#include <headrace/weights.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/fail.h"
#include "core/exec/stop.h"
#include "data/store/file_name.h"
#include "engine/assembly/training.h"
#include "engine/verbs/data_report.h"
#include "engine/verbs/train_history.h"
#include "engine/verbs/verbs.h"
#include "torch/tensor/pt_weights.h"
#include "torch/train/checkpoint.h"

namespace headrace {
namespace {

// Loads what --checkpoint names and returns the file it was. A folder stands for its newest checkpoint.
std::filesystem::path load(VerbContext& context, Training& training) {
  const std::string& model = context.loaded.recipe.model.name;
  if (!context.invocation.checkpoint) {
    fail(ErrorCode::invalid_argument, "eval: --checkpoint FILE or FOLDER is needed");
  }
  const std::filesystem::path& path = *context.invocation.checkpoint;
  if (std::filesystem::is_directory(path)) {
    std::vector<std::string> warnings;
    const std::optional<CheckpointInfo> info =
        load_newest_checkpoint(path, training.trainer(), model, /*weights_only=*/true, warnings);
    for (const std::string& warning : warnings) context.console.warning(warning);
    if (!info) fail(ErrorCode::not_found, "eval: {}: no checkpoint that loads", path.string());
    return info->path;
  }
  if (!is_pt(path) && is_checkpoint(path)) {
    load_checkpoint(path, training.trainer(), model, /*weights_only=*/true);
  } else {
    load_weights(path, training.trainer().model(), /*except=*/{});
  }
  return path;
}

// The weights do not change any more, so the network is frozen where it can be: the same logits but for rounding. Under
// autocast it stays as it is, or weights that were folded in float32 would be rounded again.
Forward evaluation_forward(Console& console, const Training& training) {
  if (training.recipe().train.precision != Precision::fp32) return {};
  try {
    return training.frozen_forward();
  } catch (const Error& error) {
    console.warning(std::string(error.what()) + "; evaluating it as it is");
    return {};
  }
}

struct Evaluated {
  Split split;
  Loader& loader;
};

// What eval.split names, or an Error as of opening it.
Evaluated evaluated_split(Training& training) {
  const EvalSplit asked = training.recipe().eval.split;
  if (asked != EvalSplit::val && training.test_loader() != nullptr) return {Split::test, *training.test_loader()};
  if (asked != EvalSplit::test && training.val_loader() != nullptr) return {Split::val, *training.val_loader()};
  fail(ErrorCode::not_found, "eval: {} has no split {} (eval.split = \"{}\")",
       printable_name(training.recipe().data.source),
       asked == EvalSplit::automatic ? "test or val" : choice_name(asked), choice_name(asked));
}

}  // namespace

int run_eval(VerbContext& context) {
  Console& console = context.console;
  Training training{context.loaded.recipe, context.machine};
  const std::filesystem::path checkpoint = load(context, training);
  if (context.invocation.dry_run) {
    console.info(fmt::format("dry run: {} fits {}; nothing was evaluated", checkpoint.string(),
                             context.loaded.recipe.model.name));
    return kExitDone;
  }
  tell_remarks(console, context.settings, training);
  const Evaluated asked = evaluated_split(training);
  const std::string split{choice_name(asked.split)};
  const Evaluation evaluation = evaluate(training.trainer(), asked.loader, evaluation_forward(console, training),
                                         [] { return stop_signal() != 0; });
  if (!std::isfinite(evaluation.loss)) {
    fail(ErrorCode::numerics, "eval: {}: the {} loss is {}: the weights, or what they make of the data, are not finite",
         checkpoint.string(), split, evaluation.loss);
  }
  console.result(fmt::format("{}: {} accuracy {}, loss {:.4f}, {} samples\n", checkpoint.filename().string(), split,
                             accuracy_text(evaluation.accuracy, evaluation.top5_accuracy), evaluation.loss,
                             evaluation.samples));
  nlohmann::ordered_json document = document_head(context, "headrace-eval");
  document["checkpoint"] = checkpoint.string();
  document["split"] = split;
  document[split + "_accuracy"] = evaluation.accuracy;
  if (evaluation.top5_accuracy) document[split + "_top5_accuracy"] = *evaluation.top5_accuracy;
  document[split + "_loss"] = evaluation.loss;
  document["samples"] = evaluation.samples;
  document[split + "_by_class"] = to_json(evaluation.classes);
  const std::vector<std::string>& class_names = training.train_source().info().class_names;
  if (!class_names.empty()) document["class_names"] = class_names;
  document["corrupt_samples"] = corrupt_samples_json(training);
  tell_corrupt_samples(console, training);
  const double least = context.loaded.recipe.eval.at_least;
  document["at_least"] = least;
  console.json(document);
  if (!(evaluation.accuracy >= least)) {
    console.error(
        fmt::format("eval: {} accuracy {:.4f} is below eval.at_least = {}", split, evaluation.accuracy, least));
    return kExitVerdict;
  }
  return kExitDone;
}

}  // namespace headrace
