#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/files.h"
#include "exec/stop.h"
#include "tensor/compute.h"
#include "train/checkpoint.h"
#include "verbs/train_run.h"
#include "verbs/verbs.h"

namespace headrace {
namespace {

void resume(VerbContext& context, Training& training, const RunFolder& folder) {
  std::vector<std::string> warnings;
  const std::optional<CheckpointInfo> info =
      resume_newest(folder.path(), training.trainer(), context.loaded.recipe.model.name, warnings);
  for (const std::string& warning : warnings) context.console.warning(warning);
  if (!info) {
    context.console.info(
        fmt::format("--resume: no checkpoint in {}; starting from the beginning", folder.path().string()));
    return;
  }
  context.console.info(fmt::format("resuming {} in epoch {}, batch {}", info->path.filename().string(),
                                   info->progress.epoch + 1, info->progress.batch));
  if (info->compute_threads != compute_threads()) {
    context.console.warning(fmt::format(
        "the checkpoint was written with {} compute threads, this run has {}: results may differ in rounding",
        info->compute_threads, compute_threads()));
  }
  if (info->seed != static_cast<std::uint64_t>(context.loaded.recipe.seed)) {
    context.console.warning(
        fmt::format("the checkpoint was written with seed {}, this run has {}: the order of samples differs",
                    info->seed, context.loaded.recipe.seed));
  }
}

}  // namespace

int run_train(VerbContext& context) {
  Console& console = context.console;
  if (context.invocation.dry_run) {
    Training training{context.loaded.recipe, context.machine};
    console.info(fmt::format("dry run: {} epochs of {} batches; nothing was trained",
                             context.loaded.recipe.train.epochs, training.batches_per_epoch()));
    return kExitDone;
  }
  RunFolder folder{context.invocation, context.loaded};
  console.log_to(folder.file("log.txt"));
  Training training{context.loaded.recipe, context.machine};
  for (const Applied& applied : training.applied()) {
    if (!applied.reason.empty()) {
      console.warning(fmt::format("{} = {} is not applied ({}): {}", applied.key, applied.requested, applied.applied,
                                  applied.reason));
    }
  }
  if (context.invocation.resume) {
    resume(context, training, folder);
  } else {
    refuse_earlier_checkpoints(folder.path());
  }
  const TrainRun run = train_to_end(training, folder.path(), console);

  nlohmann::ordered_json document = document_head(context, "headrace-train");
  document["folder"] = folder.path().string();
  document["training"] = to_json(run);
  const bool tested = !run.epochs.empty();
  document["test_accuracy"] = tested ? nlohmann::ordered_json(run.epochs.back().test_accuracy) : nullptr;
  write_file(folder.file("result.json"), json_text(document));
  console.json(document);
  if (run.stopped_by != 0) return stop_exit_code(run.stopped_by);
  folder.mark_whole();
  if (tested) {
    console.result(fmt::format("test accuracy {:.4f} after {} epochs, {}; {}\n", run.epochs.back().test_accuracy,
                               run.epochs.back().epoch, duration_text(run.seconds), folder.path().string()));
  } else {
    console.result(fmt::format("nothing left to train: {}\n", folder.path().string()));
  }
  return kExitDone;
}

}  // namespace headrace
