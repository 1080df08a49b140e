#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/report.h>
#include <headrace/trace_export.h>
#include <headrace/tune.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/cli/environment.h"
#include "app/cli/recipe_from_data.h"
#include "app/knobs/knob.h"
#include "app/knobs/strategy_library.h"
#include "app/knobs/strategy_offer.h"
#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/exec/stop.h"
#include "core/memory/sampler.h"
#include "engine/assembly/training_job.h"
#include "engine/assembly/tuned_recipe.h"
#include "engine/verbs/data_report.h"
#include "engine/verbs/train_run.h"
#include "engine/verbs/verbs.h"
#include "insight/diagnose/json.h"
#include "insight/measure/measure.h"
#include "insight/tune/ledger_json.h"
#include "insight/tune/ledger_report.h"
#include "torch/tensor/compute.h"

namespace headrace {
namespace {

constexpr std::int64_t kBurnInSteps = 10;    // First steps pay for oneDNN's kernels and page faults.
constexpr std::int64_t kMeasuredSteps = 40;  // For the diagnosis, and for the traces of baseline and tuned job.
constexpr std::int64_t kMeasuredStepsMin = 5;
// Of the budget, beside it: for the burn-in, for traced steps before and after, and for the blocks with each.
constexpr double kStepsShare = 0.05, kBlocksShare = 0.10;
constexpr double kIndexShare = 0.10;  // For an index of the images, where one is made for trials.
constexpr double kCostMax = 1 + 3 * kStepsShare + 2 * kBlocksShare + kIndexShare;

struct Tuning {
  Measured before;
  std::optional<TraceRecord> tuned_trace;  // nullopt: nothing was kept, or stopped.
  Ledger ledger;
  bool stopped = false;  // Before every change was decided, or before the tuned job was measured.
  Offer offered;
  std::vector<Applied> applied;  // Of the best settings.
  nlohmann::ordered_json corrupt_samples;
};

// A tenth of the budget is the most that its candidate may cost before its trial.
void make_trial_index(Training& training, Console& console) {
  const TuneOptions& options = training.recipe().tune;
  const auto names = [](const std::vector<std::string>& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  if (names(options.fixed, "data.index") || !(options.only.empty() || names(options.only, kIndexCandidate))) return;
  console.progress("Making an index for trials");
  const std::int64_t end_ns = monotonic_ns() + static_cast<std::int64_t>(options.budget_s * kIndexShare * 1e9);
  const std::string why_not =
      training.make_trial_index([&](std::int64_t) { return monotonic_ns() < end_ns && stop_signal() == 0; });
  console.clear_progress();
  if (!why_not.empty()) console.info(why_not);
}

// Returns the steps that are traced: fewer, where a step is slow for the budget.
std::int64_t burn_in(TrainingJob& job, double budget_s) {
  const double share_s = kStepsShare * budget_s;
  const std::int64_t begin_ns = monotonic_ns();
  double step_s = job.run(1).front();
  for (std::int64_t i = 1; i < kBurnInSteps && seconds_since(begin_ns) < share_s; ++i) step_s = job.run(1).front();
  return std::clamp(static_cast<std::int64_t>(std::min(share_s / step_s, static_cast<double>(kMeasuredSteps))),
                    kMeasuredStepsMin, kMeasuredSteps);
}

// A recipe that nobody has read yet is tuned alone: its epochs and learning rate are assumptions.
bool trains_afterwards(const VerbContext& context) {
  return !context.invocation.data;
}

void tell_training_time(const VerbContext& context, const Training& training, const Measured& before) {
  const double step_s = before.split.total_s / static_cast<double>(before.split.steps);
  const auto steps = static_cast<double>(training.batches_per_epoch() * training.recipe().train.epochs);
  context.console.info(fmt::format("training{}: {} epochs, about {:.0f} s as the recipe is written",
                                   trains_afterwards(context) ? " afterwards" : " would take",
                                   training.recipe().train.epochs, steps * step_s));
}

// This executable; where the system does not tell it, none, and what needs it fails by name.
std::vector<std::string> trial_command() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  return {self.string(), std::string(kTrialVerb)};
}

// Without what needs a new process. nullopt: stopped. What was decided before stays, and is reported without it.
std::optional<TraceRecord> trace_tuned(TrainingJob& job, Settings best, const Machine& machine, std::int64_t steps) {
  std::erase_if(best, [](const auto& setting) { return needs_new_process(setting.first); });
  try {
    job.configure(best);
    return measure(job, machine, {.steps = steps, .compute_threads = compute_threads(), .blocks_s_max = 0}).trace;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::cancelled) throw;
    return std::nullopt;
  }
}

// What is kept and holds in a process that starts with it alone does not hold in this one.
void note_new_process(std::vector<Applied>& applied, const Settings& best) {
  for (Applied& held : applied) {
    const auto kept = best.find(held.key);
    if (kept == best.end() || !needs_new_process(held.key)) continue;
    held.requested = kept->second;
    std::erase(held.requested, '"');  // Text, as the others have it.
    held.reason =
        "it holds in a process that starts with it, as headrace train makes one of tuned.toml; what this run traced "
        "and trained afterwards is without";
  }
}

void tell_new_process(Console& console, const Settings& best, const std::filesystem::path& tuned) {
  for (const auto& [key, value] : best) {
    if (!needs_new_process(key)) continue;
    console.warning(
        fmt::format("{} = {} holds in a process that starts with it: the training that follows goes "
                    "without, `headrace train {}` has it",
                    key, value, tuned.string()));
  }
}

void tell_ended(Console& console, const StrategySwitch& strategies) {
  for (const auto& [key, why] : strategies.ended()) console.warning(fmt::format("{}: {}", key, why));
}

Tuning tune_recipe(VerbContext& context) {
  Console& console = context.console;
  const double budget_s = context.loaded.recipe.tune.budget_s;
  console.info(
      fmt::format("tuning takes at most about {:.4g} s: tune.budget_s = {:.4g} for trials, the rest for measuring "
                  "before and after",
                  kCostMax * budget_s, budget_s));
  TrainingJob job{context.loaded.recipe, context.machine};
  if (trains_afterwards(context)) require_val(job.training());
  job.set_trial_command(trial_command());
  tell_remarks(console, context.settings, job.training());
  console.progress("Measuring the recipe as it is written");
  const std::int64_t measured_steps = burn_in(job, budget_s);
  Tuning tuning;
  tuning.before =
      measure(job, context.machine,
              {.steps = measured_steps, .compute_threads = compute_threads(), .blocks_s_max = kBlocksShare * budget_s});
  console.info(tuning.before.diagnosis.sentence);
  tell_training_time(context, job.training(), tuning.before);
  make_trial_index(job.training(), console);
  tuning.offered = offer(context_of(context.loaded.recipe, context.machine, job.training().data_context()),
                         to_string(tuning.before.diagnosis.bound));
  add_strategies(tuning.offered, job.strategies(), job.strategy_context(), to_string(tuning.before.diagnosis.bound));

  TuneProgress progress;
  progress.judged = [&](const Quietness& found) {
    console.clear_progress();
    console.info(found.sentence);
  };
  progress.trying = [&](const Candidate& candidate, std::size_t index, std::size_t count) {
    console.progress(fmt::format("Trying {} of {}: {}", index + 1, count, candidate.name));
  };
  progress.decided = [&](const Trial& trial) {
    console.clear_progress();
    console.info(fmt::format("{:<12} {}: {}", to_string(trial.verdict), trial.name, trial.sentence));
  };
  progress.stop = [] { return stop_signal() != 0; };
  tuning.ledger = tune(job, tuning.offered.candidates, context.loaded.recipe.tune,
                       static_cast<std::uint64_t>(context.loaded.recipe.seed), progress);
  tuning.ledger.baseline = as_written(context.loaded.recipe, tuning.offered.candidates);
  if (!tuning.ledger.best.empty()) {
    console.progress("Tracing the tuned job");
    tuning.tuned_trace = trace_tuned(job, tuning.ledger.best, context.machine, measured_steps);
  }
  tuning.stopped = stop_signal() != 0;
  tuning.applied = job.training().applied();
  note_new_process(tuning.applied, tuning.ledger.best);
  for (Applied& entry : settings_left_out(tuning.ledger)) tuning.applied.push_back(std::move(entry));
  tell_corrupt_samples(console, job.training());
  tuning.corrupt_samples = corrupt_samples_json(job.training());
  job.undo_strategies();
  console.clear_progress();
  tell_ended(console, job.strategies());
  return tuning;
}

Report tune_report(const VerbContext& context, const Tuning& tuning, const TrainRun& run,
                   const MemoryTimeline& memory) {
  Report report;
  report.title = context.loaded.name;
  show_ledger(report, tuning.ledger, tuning.offered.candidates, "the recipe as written");
  report.not_tried = tuning.offered.not_tried;
  if (!report.before) report.before = tuning.before.split;
  show_trace(report, tuning.before.trace, "Before");
  if (tuning.tuned_trace) show_trace(report, *tuning.tuned_trace, "After");
  report.diagnosis = tuning.before.diagnosis.sentence;
  report.findings = tuning.before.diagnosis.findings;
  report.resources = tuning.before.diagnosis.resources;
  if (tuning.stopped) report.verdict = "Stopped before the end: below is what was decided until then.";
  show_training(report, run);
  report.memory = memory;
  report.environment = report_environment(context.machine, TORCH_VERSION);
  report.settings = all_applied(tuning.applied, context.settings);
  if (context.invocation.data) {
    for (const auto& [key, value, source] : assumptions_of(context.loaded)) {
      report.settings.push_back({key, value, value, source});
    }
  }
  report.command = command_line(context.invocation);
  report.written = utc_text();
  return report;
}

nlohmann::ordered_json ledger_document(const VerbContext& context, const Tuning& tuning, const TrainRun& run,
                                       const Report& report) {
  nlohmann::ordered_json document = to_json(tuning.ledger);
  const nlohmann::ordered_json head = document_head(context, "headrace-ledger");
  for (const auto& [key, value] : head.items()) document[key] = value;
  add_measured(document, tuning.before, report);
  document["training"] = to_json(run);
  if (context.invocation.data) document["assumed"] = assumptions_json(context.loaded);
  add_outcome(document, run);
  return document;
}

// When a change takes effect in a run that goes on, and what it typically costs.
std::string when_text(const Candidate& candidate) {
  std::string text = to_string(candidate.switches);
  if (candidate.prepare_s > 0) text += fmt::format(", {:g} s to prepare", candidate.prepare_s);
  if (candidate.switch_s > 0) text += fmt::format(", {:g} s a switch", candidate.switch_s);
  if (candidate.carries_over) text += ", queues carry over";
  return text;
}

int dry_run(VerbContext& context) {
  if (context.invocation.data) tell_assumptions(context.console, context.loaded);
  Training training{context.loaded.recipe, context.machine};
  std::string text = fmt::format("dry run: {} batches an epoch; would try, in this order when compute-bound:\n",
                                 training.batches_per_epoch());
  Offer offered = offer(context_of(context.loaded.recipe, context.machine, training.data_context()), "compute");
  StrategyContext strategy_context;
  strategy_context.trainer = &training.trainer();
  add_strategies(offered, StrategySwitch(), strategy_context, "compute");
  for (const Candidate& candidate : offered.candidates) {
    text += fmt::format("  {:<24} {} ({})\n", candidate.name, candidate.sentence, when_text(candidate));
  }
  text += "would not try:\n";
  for (const Report::NotTried& change : offered.not_tried) {
    text += fmt::format("  {:<24} {}: {}\n", change.name, change.key, change.reason);
  }
  context.console.result(text);
  return kExitDone;
}

}  // namespace

int run_tune(VerbContext& context) {
  load_strategies(context.loaded.recipe.tune.strategies);
  if (context.invocation.dry_run) return dry_run(context);
  Console& console = context.console;
  RunFolder folder{context.invocation, context.loaded};
  console.log_to(folder.file("log.txt"));
  refuse_earlier_checkpoints(folder.path());
  if (context.invocation.data) tell_assumptions(console, context.loaded);
  MemorySampler sampler{kMemoryInterval};
  const Tuning tuning = tune_recipe(context);
  const Recipe tuned = tuned_recipe(context.loaded.recipe, tuning.ledger);
  write_tuned_toml(folder.file("tuned.toml"), tuned, tuning.ledger);
  export_trace(tuning.before.trace, folder.file("trace-baseline.json"), TraceForm::chrome);
  if (tuning.tuned_trace) export_trace(*tuning.tuned_trace, folder.file("trace-tuned.json"), TraceForm::chrome);

  TrainRun run;
  nlohmann::ordered_json corrupt_samples = tuning.corrupt_samples;
  if (!tuning.stopped && trains_afterwards(context)) {
    // The training may take hours, and a kill in them must not cost what the trials have found.
    nlohmann::ordered_json so_far =
        ledger_document(context, tuning, run, tune_report(context, tuning, run, sampler.timeline()));
    so_far["training"] = nullptr;
    write_file(folder.file("ledger.json"), json_text(so_far));
    console.info("training with what was kept");
    tell_new_process(console, tuning.ledger.best, folder.file("tuned.toml"));
    Training training{tuned, context.machine};
    StrategySwitch strategies;
    StrategyContext strategy_context;
    strategy_context.trainer = &training.trainer();
    strategies.set(tuning.ledger.best, strategy_context);
    run = train_to_end(training, folder.path(), console);
    strategies.set({}, strategy_context);
    tell_ended(console, strategies);
    corrupt_samples = corrupt_samples_json(training);
  } else if (!tuning.stopped) {
    console.info(fmt::format("nothing was trained; `headrace train {}` trains with what was kept",
                             folder.file("tuned.toml").string()));
  } else {
    run.stopped_by = stop_signal();
    console.warning("tune: stopped; ledger.json holds what was decided so far, nothing was trained");
  }
  const MemoryTimeline memory = sampler.timeline();
  const Report report = tune_report(context, tuning, run, memory);
  nlohmann::ordered_json document = ledger_document(context, tuning, run, report);
  document["memory"] = to_json(memory);
  document["corrupt_samples"] = std::move(corrupt_samples);
  write_file(folder.file("ledger.json"), json_text(document));
  write_file(folder.file("report.html"), report_html(report));
  console.json(document);
  console.result(report_text(report, console.width(), console.colour()));
  console.info("report: " + folder.file("report.html").string());
  if (run.stopped_by != 0) return stop_exit_code(run.stopped_by);
  folder.mark_whole();
  return report.positive ? kExitDone : kExitVerdict;
}

}  // namespace headrace
