#include "python/core/python_tune.h"

#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/report.h>
#include <headrace/trace.h>
#include <headrace/trace_export.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "app/cli/console.h"
#include "app/cli/environment.h"
#include "app/knobs/knob.h"
#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/hardware/machine.h"
#include "insight/diagnose/json.h"
#include "insight/measure/measure.h"
#include "insight/tune/ledger_json.h"
#include "insight/tune/ledger_report.h"
#include "python/core/errors.h"
#include "python/core/python_job.h"
#include "python/core/torch_facts.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

constexpr std::int64_t kBurnInSteps = 10;
constexpr std::int64_t kMeasuredStepsMin = 5, kMeasuredStepsMax = 40;
constexpr double kMeasureShare = 0.05;  // Of the budget, for each of burn-in, traced steps and confirmation.

struct Tuning {
  Measured before;
  std::optional<TraceRecord> tuned_trace;  // nullopt: nothing was kept.
  Ledger ledger;
  Offer offered;
  std::vector<Applied> applied;
  MemoryTimeline memory;
};

// Runs `work`, which calls Python, under the GIL.
template <class Work>
auto in_python(Work&& work) {
  const nb::gil_scoped_acquire held;
  return from_python(std::forward<Work>(work));
}

std::vector<Applied> applied_of(const nb::object& subject) {
  std::vector<Applied> list;
  const nb::object rows = subject.attr("applied")();
  for (const nb::handle row : rows) {
    const auto fields = nb::cast<std::vector<std::string>>(row);
    list.push_back({fields.at(0), fields.at(1), fields.at(2), fields.at(3)});
  }
  return list;
}

Measured measure_within(PythonJob& job, const Machine& machine, double step_s, double share_s, double blocks_s_max) {
  const auto steps = static_cast<std::int64_t>(
      std::clamp(share_s / step_s, static_cast<double>(kMeasuredStepsMin), static_cast<double>(kMeasuredStepsMax)));
  return measure(job, machine, {.steps = steps, .compute_threads = compute_threads(), .blocks_s_max = blocks_s_max});
}

Tuning run(PythonJob& job, const nb::object& subject, const TuneRequest& request,
           const std::function<void(const char*, const std::string&)>& tell) {
  const std::int64_t begin_ns = monotonic_ns();
  const auto spent_s = [begin_ns] { return seconds_since(begin_ns); };
  const Machine machine = detect_machine();
  const double share_s = kMeasureShare * request.options.budget_s;
  tell("step", "Measuring the loop as it is");
  job.check();
  double step_s = job.run(1).front();
  for (std::int64_t i = 1; i < kBurnInSteps && spent_s() < share_s; ++i) step_s = job.run(1).front();
  Tuning tuning;
  tuning.before = measure_within(job, machine, step_s, share_s, share_s);
  tell("diagnosis", tuning.before.diagnosis.sentence);
  job.restore();
  tuning.offered =
      in_python([&] { return nb::cast<Offer>(subject.attr("offer")(to_string(tuning.before.diagnosis.bound))); });
  TuneProgress progress;
  progress.judged = [&](const Quietness& found) {
    if (!found.quiet.value_or(true)) tell("machine", found.sentence);
  };
  progress.trying = [&](const Candidate& candidate, std::size_t index, std::size_t count) {
    tell("step", fmt::format("Trying {} of {}: {}", index + 1, count, candidate.name));
  };
  progress.decided = [&](const Trial& trial) {
    tell("decided", fmt::format("{:<12} {}: {}", to_string(trial.verdict), trial.name, trial.sentence));
  };
  TuneOptions options = request.options;
  options.budget_s = std::max(options.budget_s / 2, options.budget_s - spent_s() - share_s);
  tuning.ledger = tune(job, tuning.offered.candidates, options, request.seed, progress);
  job.rethrow_interrupt();
  tuning.ledger.baseline = in_python([&] { return nb::cast<Settings>(subject.attr("baseline")()); });
  if (!tuning.ledger.best.empty()) {
    tell("step", "Tracing the tuned loop");
    tuning.tuned_trace = measure_within(job, machine, step_s, share_s, 0).trace;
    job.restore();
  }
  tuning.applied = in_python([&] { return applied_of(subject); });
  tuning.memory = job.memory();
  for (Applied& entry : settings_left_out(tuning.ledger)) tuning.applied.push_back(std::move(entry));
  return tuning;
}

Report report_of(const Tuning& tuning, const TuneRequest& request) {
  Report report;
  report.title = request.title;
  show_ledger(report, tuning.ledger, tuning.offered.candidates, "the loop as written");
  report.not_tried = tuning.offered.not_tried;
  report.budget_s = request.options.budget_s;  // The ledger's is without what measuring took.
  if (!report.before) report.before = tuning.before.split;
  show_trace(report, tuning.before.trace, "Before");
  if (tuning.tuned_trace) show_trace(report, *tuning.tuned_trace, "After");
  report.diagnosis = tuning.before.diagnosis.sentence;
  report.findings = tuning.before.diagnosis.findings;
  report.resources = tuning.before.diagnosis.resources;
  report.environment = report_environment(detect_machine(), torch_version());
  report.memory = tuning.memory;
  report.settings = tuning.applied;
  report.command = request.command;
  report.written = utc_text();
  return report;
}

nlohmann::ordered_json document_of(const Tuning& tuning, const Report& report) {
  nlohmann::ordered_json document = to_json(tuning.ledger);
  document["title"] = report.title;
  document["command"] = report.command;
  document["written"] = report.written;
  for (const auto& [name, value] : report.environment) document["environment"][name] = value;
  document["settings"] = nlohmann::ordered_json::array();
  for (const Applied& applied : tuning.applied) {
    document["settings"].push_back({{"key", applied.key},
                                    {"requested", applied.requested},
                                    {"applied", applied.applied},
                                    {"reason", applied.reason}});
  }
  add_measured(document, tuning.before, report);
  document["memory"] = to_json(tuning.memory);
  return document;
}

constexpr double kTracedShare = 0.4;  // Of a diagnosis' budget; the rest is for differential runs.
constexpr std::int64_t kDiagnosedStepsMin = 5;

Measured measure_loop(PythonJob& job, std::int64_t steps, double budget_s) {
  job.check();
  double step_s = job.run(1).front();
  const std::int64_t begin_ns = monotonic_ns();
  for (std::int64_t i = 1; i < kBurnInSteps && seconds_since(begin_ns) < kMeasureShare * budget_s; ++i) {
    step_s = job.run(1).front();
  }
  const double fitting = kTracedShare * budget_s / std::max(step_s, 1e-9);
  const auto traced = static_cast<std::int64_t>(
      std::clamp(fitting, static_cast<double>(kDiagnosedStepsMin), static_cast<double>(steps)));
  return measure(
      job, detect_machine(),
      {.steps = traced, .compute_threads = compute_threads(), .blocks_s_max = (1 - kTracedShare) * budget_s});
}

}  // namespace

std::string diagnose_objects(const nb::object& subject, std::int64_t steps, double budget_s) {
  PythonJob job{subject};
  const nb::gil_scoped_release released;
  try {
    const Measured measured = measure_loop(job, steps, budget_s);
    job.restore();
    job.rethrow_interrupt();
    return json_text(
        nlohmann::ordered_json{{"diagnosis", to_json(measured.diagnosis)}, {"time_split", to_json(measured.split)}});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) job.rethrow_interrupt();
    throw;
  }
}

TuneResult tune_objects(const nb::object& subject, const TuneRequest& request, const nb::callable& on_progress) {
  const auto tell = [&](const char* kind, const std::string& text) { in_python([&] { on_progress(kind, text); }); };
  PythonJob job{subject};
  const nb::gil_scoped_release released;
  Tuning tuning;
  try {
    tuning = run(job, subject, request, tell);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) job.rethrow_interrupt();
    throw;
  }
  const Report report = report_of(tuning, request);
  const std::string document = json_text(document_of(tuning, report));
  if (!request.out.empty()) {
    const std::filesystem::path folder{request.out};
    write_file(folder / "ledger.json", document);
    write_file(folder / "report.html", report_html(report));
    export_trace(tuning.before.trace, folder / "trace-baseline.json", TraceForm::chrome);
    if (tuning.tuned_trace) export_trace(*tuning.tuned_trace, folder / "trace-tuned.json", TraceForm::chrome);
  }
  return {document, report_text(report, request.width, false)};
}

}  // namespace headrace::python
