#include <fmt/format.h>
#include <headrace/batch_planner.h>
#include <headrace/error.h>
#include <headrace/report.h>
#include <torch/headeronly/version.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/cli/environment.h"
#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "core/exec/stop.h"
#include "core/memory/sampler.h"
#include "engine/verbs/data_report.h"
#include "engine/verbs/train_online.h"
#include "engine/verbs/train_run.h"
#include "engine/verbs/verbs.h"
#include "insight/diagnose/json.h"
#include "torch/tensor/allocator.h"
#include "torch/tensor/compute.h"
#include "torch/train/checkpoint.h"

namespace headrace {
namespace {

// What a checkpoint tells beside the trainer's state.
struct Resumed {
  ResumedRun run;
  std::optional<LiveLedger> tuning;  // nullopt: the run did not tune itself.
};

// One sentence for each difference that keeps the run from ending as the uninterrupted one would have.
void warn_of_differences(Console& console, const CheckpointInfo& info, const RunState& now, const TuneOptions& tune) {
  // A run that tunes itself, or repeats one that did, may have switched them.
  const bool may_switch = !info.run.tuning.empty() || !tune.replay.empty();
  if (!may_switch && info.compute_threads != compute_threads()) {
    console.warning(fmt::format(
        "the checkpoint was written with {} compute threads, this run has {}: results may differ in rounding",
        info.compute_threads, compute_threads()));
  }
  if (info.run.seed != now.seed) {
    console.warning(
        fmt::format("the checkpoint was written with seed {}, this run has {}: the order of samples differs",
                    info.run.seed, now.seed));
  }
  if (info.run.data != now.data) {
    console.warning(fmt::format(
        "the checkpoint was trained on other data (fingerprint {}, now {}): the run goes on over what there "
        "is now",
        hex(info.run.data), hex(now.data)));
  }
  if (info.run.batches_per_epoch != now.batches_per_epoch) {
    console.warning(fmt::format(
        "the checkpoint was written with {} batches an epoch, this run has {}: the samples of its epoch {} differ",
        info.run.batches_per_epoch, now.batches_per_epoch, info.progress.epoch + 1));
  }
}

// Where the run goes on; from the beginning when there is nothing to resume.
Resumed resume(VerbContext& context, Training& training, const RunFolder& folder) {
  std::vector<std::string> warnings;
  const std::optional<CheckpointInfo> info =
      load_newest_checkpoint(folder.path(), training.trainer(), context.loaded.recipe.model.name,
                             /*weights_only=*/false, warnings);
  for (const std::string& warning : warnings) context.console.warning(warning);
  if (!info) {
    context.console.info(
        fmt::format("--resume: no checkpoint in {}; starting from the beginning", folder.path().string()));
    return {};
  }
  Resumed resumed;
  resumed.run.tensors = info->run.tensors;
  TrainHistory& history = resumed.run.history;
  history = parse_history(info->run.history, info->run.evaluation_due, tests_were_val(training), info->path);
  if (!info->run.tuning.empty()) resumed.tuning = parse_live_ledger(info->run.tuning, info->path.string());
  const std::string name = info->path.filename().string();
  const TrainOptions& options = context.loaded.recipe.train;
  const bool has_ended =
      info->progress.epoch >= options.epochs || is_out_of_patience(history.epochs, options.early_stopping_patience);
  if (history.evaluation_due) {
    context.console.info(fmt::format("resuming {} at the end of epoch {}", name, info->progress.epoch));
  } else if (has_ended && !history.result) {
    context.console.info(
        fmt::format("resuming {} after epoch {}: its result is not recorded", name, info->progress.epoch));
  } else if (has_ended) {
    context.console.info(fmt::format("resuming {}: nothing is left to train", name));
  } else {
    context.console.info(
        fmt::format("resuming {} in epoch {}, batch {}", name, info->progress.epoch + 1, info->progress.batch));
  }
  warn_of_differences(context.console, *info, run_state(training, history), context.loaded.recipe.tune);
  return resumed;
}

nlohmann::ordered_json batch_plan_json(const BatchPlan& plan) {
  nlohmann::ordered_json document{{"batch_size", plan.batch_size},
                                  {"gradient_accumulation_steps", plan.gradient_accumulation_steps},
                                  {"fixed_bytes", plan.fixed_bytes},
                                  {"bytes_per_sample", plan.bytes_per_sample},
                                  {"predicted_peak", plan.predicted_peak},
                                  {"largest_batch_size", plan.largest_batch_size},
                                  {"memory_limit", plan.memory_limit},
                                  {"samples_per_second", nullptr},
                                  {"memory_fraction", plan.memory_fraction},
                                  {"search_s", plan.search_s},
                                  {"reason", plan.reason}};
  if (plan.samples_per_second) document["samples_per_second"] = *plan.samples_per_second;
  document["probes"] = nlohmann::ordered_json::array();
  for (const BatchProbe& probe : plan.probes) {
    document["probes"].push_back({{"batch_size", probe.batch_size},
                                  {"peak_bytes", probe.peak_bytes},
                                  {"step_s", probe.step_s},
                                  {"spread_s", probe.spread_s},
                                  {"ran_out", probe.ran_out}});
  }
  return document;
}

// With train.plan_batch_size, of a run that has taken no step yet: one that goes on stays with what its checkpoint
// says.
std::optional<BatchPlan> plan_new_run(Console& console, Training& training) {
  const Progress& progress = training.trainer().progress();
  if (!training.recipe().train.plan_batch_size || progress.epoch > 0 || progress.batch > 0) return std::nullopt;
  BatchPlan plan;
  try {
    plan = training.plan_micro_batch();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    console.warning(fmt::format("train.plan_batch_size: requested true, applied false: {}", error.what()));
    return std::nullopt;
  }
  console.info(fmt::format("batch plan: {} of {} samples at once, by {} probes in {}: {}", plan.batch_size,
                           training.recipe().data.batch_size, plan.probes.size(), duration_text(plan.search_s),
                           plan.reason));
  return plan;
}

// A limit that does not hold must not pass for one.
Report train_report(const VerbContext& context, const Training& training, const TrainRun& run) {
  Report report;
  report.kind = Report::Kind::training;
  report.title = context.loaded.name;
  report.verdict = fmt::format("{}, {}.", outcome_text(run), duration_text(run.seconds));
  report.verdict[0] = static_cast<char>(std::toupper(report.verdict[0]));
  if (!run.epochs.empty()) report.baseline_samples_per_second = run.epochs.back().samples_per_second;
  show_training(report, run);
  show_loading(report, training);
  report.environment = report_environment(context.machine, TORCH_VERSION);
  report.settings = all_applied(training.applied(), context.settings);
  report.settings.insert(report.settings.end(), run.watched.settings.begin(), run.watched.settings.end());
  report.command = command_line(context.invocation);
  report.written = utc_text();
  return report;
}

}  // namespace

int run_train(VerbContext& context) {
  Console& console = context.console;
  if (context.invocation.dry_run) {
    Training training{context.loaded.recipe, context.machine};
    require_val(training);
    console.info(fmt::format("dry run: {} epochs of {} batches; nothing was trained{}",
                             context.loaded.recipe.train.epochs, training.batches_per_epoch(),
                             online_plan(context, training)));
    return kExitDone;
  }
  RunFolder folder{context.invocation, context.loaded};
  console.log_to(folder.file("log.txt"));
  MemorySampler memory{kMemoryInterval};
  Training training{context.loaded.recipe, context.machine};
  if (allocator_in_force() == Allocator::arena) map_large_blocks();
  tell_remarks(console, context.settings, training);
  if (const std::string frozen = training.frozen_text(); !frozen.empty()) console.info("model.frozen: " + frozen);
  Resumed resumed;
  if (context.invocation.resume) {
    resumed = resume(context, training, folder);
  } else {
    refuse_earlier_checkpoints(folder.path());
  }
  const std::optional<BatchPlan> plan = plan_new_run(console, training);
  const Online online = make_online(context, training, std::move(resumed.tuning));
  const TrainRun run = train_to_end(training, folder.path(), console, std::move(resumed.run), online.run());
  undo_strategies(console, online);
  if (online.tuning != nullptr && !online.tuning->problem().empty()) {
    console.warning(online.tuning->problem() + "; the run went on as the recipe is written");
  }

  nlohmann::ordered_json document = document_head(context, "headrace-train");
  document["folder"] = folder.path().string();
  document["training"] = to_json(run);
  if (plan) document["batch_plan"] = batch_plan_json(*plan);
  Report report = train_report(context, training, run);
  report.memory = memory.timeline();
  document["memory"] = to_json(report.memory);
  document["loading"] = loading_json(training);
  document["corrupt_samples"] = corrupt_samples_json(training);
  tell_corrupt_samples(console, training);
  add_outcome(document, run);
  show_online(report, document, online);
  write_online(folder.path(), online, context.loaded.recipe, report);
  write_file(folder.file("result.json"), json_text(document));
  write_file(folder.file("report.html"), report_html(report));
  console.json(document);
  if (online.tuning != nullptr) console.result(report_text(report, console.width(), console.colour()));
  if (run.stopped_by != 0) return stop_exit_code(run.stopped_by);
  folder.mark_whole();
  console.result(fmt::format("{}, {}; {}\n", outcome_text(run), duration_text(run.seconds), folder.path().string()));
  if (run.watched.any_raised) return static_cast<int>(context.loaded.recipe.report.alerts.exit_code);
  return kExitDone;
}

}  // namespace headrace
