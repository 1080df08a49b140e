#include <headrace/loading_advice.h>
#include <headrace/profile_summary.h>
#include <headrace/report.h>
#include <headrace/time_split.h>
#include <headrace/trace_export.h>
#include <headrace/wall_split.h>
#include <torch/headeronly/version.h>

#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/cli/environment.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/exec/stop.h"
#include "core/memory/sampler.h"
#include "engine/assembly/training_job.h"
#include "engine/verbs/data_report.h"
#include "engine/verbs/verbs.h"
#include "insight/diagnose/json.h"
#include "insight/measure/measure.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/tensor_allocations.h"

namespace headrace {
namespace {

// What was measured is reported without it.
std::optional<LoadingAdvice> advice_or_warning(Console& console, TrainingJob& job, const Machine& machine,
                                               const TimeSplit& split) {
  try {
    return advise_loading(job.training(), machine, split, job.samples_per_step());
  } catch (const std::exception& error) {
    console.warning(fmt::format("no advice on loading: {}", error.what()));
    return std::nullopt;
  }
}

}  // namespace

int run_profile(VerbContext& context) {
  Console& console = context.console;
  const std::int64_t steps = context.invocation.steps;
  const TensorAllocations allocations;  // Before the first tensor.
  TrainingJob job{context.loaded.recipe, context.machine};
  if (context.invocation.dry_run) {
    console.info(fmt::format("dry run: would measure {} steps of {}; nothing was run", steps, context.loaded.name));
    return kExitDone;
  }
  RunFolder folder{context.invocation, context.loaded};
  console.log_to(folder.file("log.txt"));
  tell_remarks(console, context.settings, job.training());
  console.progress(fmt::format("Profiling {} steps", steps));
  MemorySampler memory{std::chrono::milliseconds(1)};  // Steps of small jobs take less than that.
  Measured measured = measure(job, context.machine, {.steps = steps, .compute_threads = compute_threads()});
  console.clear_progress();
  tell_corrupt_samples(console, job.training());

  Report report;
  report.kind = Report::Kind::profile;
  report.title = context.loaded.name;
  report.verdict = measured.diagnosis.verdict();
  report.diagnosis = measured.diagnosis.sentence;
  report.findings = measured.diagnosis.findings;
  report.baseline_samples_per_second = measured.diagnosis.samples_per_second;
  report.before = measured.split;
  report.resources = measured.diagnosis.resources;
  show_trace(report, measured.trace, "Now");
  report.waits = waits_in(measured.trace);
  report.memory = memory.timeline();
  show_loading(report, job.training());
  report.loading_advice = advice_or_warning(console, job, context.machine, measured.split);
  if (stop_signal() != 0) fail(ErrorCode::cancelled, "profile: stopped");  // Before the first file of the result.
  add_memory(measured.trace, report.memory);
  report.environment = report_environment(context.machine, TORCH_VERSION);
  report.settings = all_applied(job.training().applied(), context.settings);
  report.command = command_line(context.invocation);
  report.written = utc_text();

  nlohmann::ordered_json document = document_head(context, "headrace-profile");
  document["samples_per_second"] = measured.diagnosis.samples_per_second;
  document["time_split"] = to_json(measured.split);
  document["waits"] = to_json(*report.waits);
  document["diagnosis"] = to_json(measured.diagnosis);
  document["metrics"] = metric_series(measured.split, job.samples_per_step(), measured.memory);
  document["profile_summary"] = to_json(get_profile_summary(measured.trace));
  document["peak_memory_bytes"] = measured.peak_memory ? nlohmann::ordered_json(*measured.peak_memory) : nullptr;
  document["memory"] = to_json(report.memory);
  document["loading"] = loading_json(job.training());
  document["loading"]["advice"] = report.loading_advice ? to_json(*report.loading_advice) : nullptr;
  document["corrupt_samples"] = corrupt_samples_json(job.training());
  document["folder"] = folder.path().string();

  export_trace(measured.trace, folder.file("trace.json"), TraceForm::chrome);
  if (const TraceForm form = context.invocation.trace_form; form != TraceForm::chrome) {
    export_trace(measured.trace, folder.file(fmt::format("trace{}", suffix_of(form))), form);
  }
  write_file(folder.file("profile.json"), json_text(document));
  write_file(folder.file("report.html"), report_html(report));
  folder.mark_whole();
  console.result(report_text(report, console.width(), console.colour()));
  console.info("report: " + folder.file("report.html").string());
  console.json(document);
  return kExitDone;
}

}  // namespace headrace
