#include "python/core/insight_report.h"

#include <headrace/operator_steps.h>
#include <headrace/report.h>

#include <utility>

#include "app/cli/environment.h"
#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/hardware/machine.h"
#include "insight/export/tensorboard.h"
#include "python/core/torch_facts.h"

namespace headrace::python {

namespace {

// Of a record with steps of a loop.
DiagnosedRecord diagnose_steps(const TraceRecord& record, DiagnosisInput input, std::int64_t skip) {
  input.split = split_time(record, skip);
  input.resources = figures_in(record, skip);
  input.compute_threads = static_cast<int>(compute_threads());
  input.resources->compute_threads = input.compute_threads;
  input.cores = detect_machine().cores_usable;
  Diagnosis found = diagnose(input);
  return {std::move(found), std::move(input.split)};
}

}  // namespace

DiagnosedRecord diagnose_record(const TraceRecord& record, DiagnosisInput input, std::int64_t skip) {
  input.peak_memory = peak_memory();
  return diagnose_steps(with_operator_steps(record), std::move(input), skip);
}

DiagnosedRecord diagnose_file(const std::filesystem::path& path, DiagnosisInput input, std::int64_t skip) {
  return diagnose_steps(with_operator_steps(read_chrome_trace(path.string())), std::move(input), skip);
}

void write_trace_report(const std::filesystem::path& path, const TraceRecord& given, const MemoryTimeline& memory,
                        std::int64_t samples_per_step, const TraceReportOptions& options) {
  const TraceRecord record = with_operator_steps(given);
  DiagnosisInput input;
  input.samples_per_step = samples_per_step;
  input.peak_memory = peak_memory();
  const auto [diagnosis, split] = diagnose_steps(record, std::move(input), options.skip);
  const Machine machine = detect_machine();
  Report report;
  report.kind = Report::Kind::profile;
  report.title = options.title;
  report.verdict = diagnosis.verdict();
  report.baseline_samples_per_second = diagnosis.samples_per_second;
  report.before = split;
  show_trace(report, record, "Now", options.skip);
  report.diagnosis = diagnosis.sentence;
  report.findings = diagnosis.findings;
  report.resources = diagnosis.resources;
  report.memory = memory;
  report.environment = report_environment(machine, torch_version());
  report.command = options.command;
  report.written = utc_text();
  write_file(path, report_html(report));
}

std::filesystem::path write_step_events(const std::filesystem::path& folder, const TraceRecord& record) {
  const TimeSplit split = split_time(with_operator_steps(record));
  const std::int64_t start_wall_ns = wall_ns() - monotonic_ns() + record.start_ns;
  TensorBoardWriter events{folder};
  for (std::size_t i = 0; i < split.step_s.size(); ++i) {
    const TimeSplit::Parts& parts = split.parts[i];
    const MetricMoment ended{.wall_ns = start_wall_ns + split.end_ns[i], .step = static_cast<std::int64_t>(i)};
    events.add_scalar("time_split/step_s", split.step_s[i], ended);
    events.add_scalar("time_split/data_wait_s", parts.data_wait_s, ended);
    events.add_scalar("time_split/transfer_s", parts.transfer_s, ended);
    events.add_scalar("time_split/forward_s", parts.forward_s, ended);
    events.add_scalar("time_split/backward_s", parts.backward_s, ended);
    events.add_scalar("time_split/optimizer_s", parts.optimizer_s, ended);
  }
  events.sync();
  return events.path();
}

}  // namespace headrace::python
