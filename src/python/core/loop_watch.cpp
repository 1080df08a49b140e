#include "python/core/loop_watch.h"

#include <headrace/diagnosis.h>
#include <headrace/report.h>
#include <headrace/time_split.h>
#include <headrace/trace_export.h>
#include <headrace/wall_split.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "app/cli/console.h"
#include "app/cli/environment.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "insight/diagnose/json.h"
#include "insight/diagnose/live_split.h"
#include "insight/measure/resource_figures.h"
#include "python/core/batches.h"
#include "python/core/torch_facts.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;
using UsedPart = PartUseCounter::Part;

constexpr std::int64_t kMemoryEvery_ns = 50'000'000;
constexpr int kTextWidth = 100;

// What a watch cannot do without is recorded at all times.
TraceChoice with_own_names(TraceChoice choice) {
  for (const SpanName* own :
       {&step::kStep, &step::kDataWait, &step::kTransfer, &step::kForward, &step::kBackward, &step::kOptimizer,
        &loop::kEvaluation, &loop::kCheckpoint, &loop::kEpochEnd, &loop::kCpuTaken, &memory::kResident}) {
    choice.kept.emplace_back(own->text);
  }
  return choice;
}

}  // namespace

LoopWatch::LoopWatch(std::int64_t events_per_thread, const TraceChoice& choice)
    : choice_(with_own_names(choice)),
      trace_(std::make_unique<Trace>(
          TraceOptions{.events_per_thread = events_per_thread, .memory_max = kFlightMemory, .choice = choice_})),
      peak_known_(reset_peak_memory()),
      objects_memory_(std::make_unique<LoopMemory>()) {
  begin_traced_step(0);
}

void LoopWatch::end_forward(TraceMoment at) {
  if (!forward_) return;
  record_span(step::kForward, *forward_, at);
  forward_.reset();
  last_part_end_ = at;
}

void LoopWatch::end_step(TraceMoment at, bool is_last) {
  end_forward(forward_end_);
  const bool counts = step_ && trains_;
  // Behind its last part, the last step is the script's.
  if (counts && !is_last) garbage_s_ += garbage_of_step_s_;
  garbage_of_step_s_ = 0;
  if (is_last) {
    use_.end_last_step(counts);
  } else {
    use_.end_step(counts);
  }
  if (counts) {
    record_span(step::kStep, *step_, at, steps_++);
    const std::int64_t now_ns = monotonic_ns();
    last_step_ns_ = now_ns - step_begin_ns_;
    last_step_end_ns_ = now_ns;
    if (flights_) flights_->end_step(last_step_ns_);
    note_cpu_taken();
    sample_memory(now_ns);
    if (!updated_) note_objects();
  }
  step_.reset();
  trains_ = updated_ = has_wait_ = in_closure_ = false;
  begin_traced_step(steps_);
}

void LoopWatch::note_cpu_taken() {
  const std::optional<std::int64_t> now = run_delay_.ns();
  if (now && run_delay_ns_) record_gauge(loop::kCpuTaken, *now - *run_delay_ns_);
  run_delay_ns_ = now;
}

void LoopWatch::sample_memory(std::int64_t now_ns) {
  if (now_ns - memory_looked_at_ns_ >= kMemoryEvery_ns) {
    memory_looked_at_ns_ = now_ns;
    if (const auto resident = resident_memory()) memory_.push_back(*resident);
  }
  if (!memory_.empty()) record_gauge(memory::kResident, memory_.back());
}

void LoopWatch::pass_begins() {
  if (!here()) return;
  const TraceMoment now = trace_moment();
  end_step(now);
  pass_ = now;
  use_.begin(UsedPart::data_wait);
}

void LoopWatch::data_begins() {
  if (!here()) return;
  const TraceMoment now = trace_moment();
  if (!pass_ || step_) {  // Else that has ended the step, and what it costs belongs to this wait.
    end_step(now);
    use_.begin(UsedPart::data_wait);
  }
  data_ = pass_ ? *pass_ : now;
  pass_.reset();
  step_begin_ns_ = monotonic_ns();
}

void LoopWatch::data_ends(const nb::object& batch) {
  if (!here() || !data_) return;
  const TraceMoment now = trace_moment();
  if (!batch.is_none()) {
    if (samples_ == 0) samples_ = batch_samples(batch);  // What it raises leaves no half a step.
    record_span(step::kDataWait, *data_, now);
    step_ = data_;
    has_wait_ = true;
    last_part_end_ = now;
    use_.pause();  // What counting memory takes is not the loop's.
    if (const auto memory = objects_memory_) memory->note_batch(batch);
    use_.begin(UsedPart::other);
  } else {
    record_span(loop::kEpochEnd, *data_, now);
    use_.end_step(false);  // It was no step's wait.
  }
  data_.reset();
}

void LoopWatch::forward_begins(bool for_training) {
  if (!here()) return;
  const TraceMoment now = trace_moment();
  if (!for_training) {
    evaluation_ = now;
    use_.pause();
    return;
  }
  if (!has_wait_ && updated_) end_step(now);
  if (optimizer_) {  // Its closure.
    record_span(step::kOptimizer, *optimizer_, now);
    optimizer_.reset();
    in_closure_ = true;
  }
  if (!step_) {
    step_ = now;
    step_begin_ns_ = monotonic_ns();
  }
  if (!forward_) {
    forward_ = forward_end_ = now;
    use_.begin(UsedPart::forward);
  }
}

void LoopWatch::forward_ends(bool for_training) {
  if (!here()) return;
  const TraceMoment now = trace_moment();
  if (for_training) {
    forward_end_ = now;
  } else if (evaluation_) {
    record_span(loop::kEvaluation, *evaluation_, now);
    evaluation_.reset();
    use_.begin(UsedPart::other);
  }
}

void LoopWatch::backward_begins() {
  if (!here()) return;
  const TraceMoment now = trace_moment();
  end_forward(now);
  backward_ = now;
  use_.begin(UsedPart::backward);
}

void LoopWatch::backward_ends() {
  if (!here() || !backward_) return;
  last_part_end_ = trace_moment();
  record_span(step::kBackward, *backward_, last_part_end_);
  backward_.reset();
  trains_ = true;
  if (in_closure_) {
    in_closure_ = false;
    optimizer_ = last_part_end_;
  }
  use_.begin(optimizer_ ? UsedPart::optimizer : UsedPart::other);
}

void LoopWatch::optimizer_begins() {
  if (!here()) return;
  end_forward(forward_end_);
  optimizer_ = trace_moment();
  use_.begin(UsedPart::optimizer);
}

void LoopWatch::optimizer_ends() {
  if (!here()) return;
  if (in_closure_) {  // Without a backward.
    in_closure_ = false;
    end_forward(forward_end_);
    optimizer_ = last_part_end_;
  }
  if (!optimizer_) return;
  last_part_end_ = trace_moment();
  record_span(step::kOptimizer, *optimizer_, last_part_end_);
  optimizer_.reset();
  trains_ = updated_ = true;
  use_.pause();
  note_objects();  // Here gradients and optimizer state are there together.
  use_.begin(UsedPart::other);
}

void LoopWatch::beside_begins(const std::string& what) {
  const SpanName* const name = what == "transfer"     ? &step::kTransfer
                               : what == "checkpoint" ? &loop::kCheckpoint
                               : what == "optimizer"  ? &step::kOptimizer
                                                      : nullptr;
  if (name == nullptr) {
    fail(ErrorCode::invalid_argument, "watch: wanted transfer, checkpoint or optimizer, found \"{}\"", what);
  }
  if (!here()) return;
  ++beside_depth_;
  if (beside_ != nullptr || pass_ || data_ || evaluation_ || backward_ || optimizer_) return;
  if (forward_ && name == &step::kTransfer) return;  // Of the call, or of its loss.
  const TraceMoment now = trace_moment();
  if (name == &loop::kCheckpoint) {
    end_forward(forward_end_);
    use_.pause();
  } else if (name == &step::kOptimizer) {
    end_forward(now);
    use_.begin(UsedPart::optimizer);
  } else {
    use_.begin(UsedPart::transfer);
  }
  beside_ = name;
  beside_begin_ = now;
  outer_depth_ = beside_depth_;
}

void LoopWatch::beside_ends() {
  if (!here() || beside_depth_ == 0) return;
  if (beside_ != nullptr && beside_depth_ == outer_depth_) {
    const TraceMoment now = trace_moment();
    record_span(*beside_, beside_begin_, now);
    if (step_ && beside_ != &loop::kCheckpoint) last_part_end_ = now;
    beside_ = nullptr;
    use_.begin(UsedPart::other);
  }
  --beside_depth_;
}

void LoopWatch::record_flights(const std::string& folder, int signal) {
  if (!trace_) fail(ErrorCode::invalid_argument, "watch: flights: nothing records any more");
  flights_ = std::make_unique<FlightRecorder>(*trace_, FlightRecorderOptions{.folder = folder, .signal = signal});
}

std::string LoopWatch::dump(const std::string& reason) {
  if (!flights_) fail(ErrorCode::invalid_argument, "watch: dump: wanted flights=FOLDER, while the loop is watched");
  return flights_->dump(reason);
}

std::map<std::string, double> LoopWatch::live() const {
  if (!trace_ || steps_ == 0) return {};
  const std::int64_t since_ns = monotonic_ns() - last_step_end_ns_;
  std::map<std::string, double> figures = split_figures(trace_->recent(since_ns + split_time_ns(last_step_ns_)));
  double step_s = 0;
  for (const auto& [part, seconds] : figures) step_s += seconds;
  if (samples_ > 0 && step_s > 0) figures["samples_per_s"] = static_cast<double>(samples_) / step_s;
  return figures;
}

void LoopWatch::note_objects() {
  if (const auto memory = objects_memory_) memory->note_objects();
}

void LoopWatch::stop() {
  if (!trace_) return;
  std::exception_ptr raised;
  try {
    end_step(last_part_end_, /*is_last=*/true);
  } catch (...) {
    raised = std::current_exception();
  }
  if (!trace_) return;  // Another call has ended it meanwhile.
  if (flights_) {
    flown_ = flights_->end();
    flights_.reset();
  }
  record_ = trace_->stop();
  trace_.reset();
  if (const auto ns = longest_delay_between(delays_, sibling_delays())) {
    thread_delay_s_ = static_cast<double>(*ns) * 1e-9;
  }
  const std::optional<double> stall_s = memory_stall_s();
  if (stall_s && stall_began_s_) stall_s_ = std::max(0.0, *stall_s - *stall_began_s_);
  if (peak_known_) peak_memory_ = peak_memory();
  timeline_ = objects_memory_->timeline();
  objects_memory_.reset();
  if (raised) std::rethrow_exception(raised);
}

void LoopWatch::add_model(const nb::object& model) {
  if (objects_memory_) objects_memory_->add_model(model);
}

void LoopWatch::add_optimizer(const nb::object& optimizer) {
  if (objects_memory_) objects_memory_->add_optimizer(optimizer);
}

ResourceFigures LoopWatch::figures(const TimeSplit& split) const {
  ResourceFigures figures;
  figures.use = use_.uses(split.steps);
  figures.run_delay_known = use_.knows_run_delay();
  figures.compute_threads = static_cast<int>(compute_threads());
  figures.loading = loading_between(LoadingTotals{}, loading_);
  figures.garbage_s = garbage_s_;
  figures.thread_delay_s = thread_delay_s_;
  figures.memory_stall_s = stall_s_;
  figures.experiments = experiments_;
  add_machine(figures, peaks_, work_, split.steps);
  return figures;
}

WatchResult LoopWatch::result(const std::string& title, const std::string& command) const {
  if (steps_ == 0) {
    fail(ErrorCode::invalid_argument,
         "watch: no training step was seen: no backward and no optimizer step between two batches");
  }
  DiagnosisInput input;
  input.split = split_time(record_);
  input.samples_per_step = std::max<std::int64_t>(1, samples_);
  input.compute_threads = static_cast<int>(compute_threads());
  const Machine machine = detect_machine();
  input.cores = machine.cores_usable;
  input.peak_memory = peak_memory_;
  if (!memory_.empty()) {
    const auto count = static_cast<std::int64_t>(memory_.size());
    input.mean_memory = std::accumulate(memory_.begin(), memory_.end(), std::int64_t{0}) / count;
  }
  std::optional<Diagnosis> diagnosis;  // Of device work, the host's times say nothing of what limits it.
  Report report;
  report.kind = Report::Kind::profile;
  report.title = title;
  if (host_time_) {
    report.note = kHostTime;
    report.baseline_samples_per_second =
        static_cast<double>(samples_) * static_cast<double>(input.split.steps) / input.split.total_s;
  } else {
    input.resources = figures(input.split);
    diagnosis = diagnose(input);
    report.verdict = diagnosis->verdict();
    report.diagnosis = diagnosis->sentence;
    report.findings = diagnosis->findings;
    report.resources = diagnosis->resources;
    report.baseline_samples_per_second = samples_ > 0 ? diagnosis->samples_per_second : 0;
  }
  report.before = input.split;
  show_trace(report, record_, "Now");
  report.wall = split_wall(record_);
  report.waits = waits();
  report.command = command;
  report.memory = timeline_;
  report.environment = report_environment(machine, torch_version());
  report.written = utc_text();

  nlohmann::ordered_json document = document_of(input, report);
  document["diagnosis"] = diagnosis ? to_json(*diagnosis) : nlohmann::ordered_json(nullptr);
  return {json_text(document), report_text(report, kTextWidth, false), report_html(report)};
}

std::vector<std::filesystem::path> LoopWatch::write_trace(const std::string& path, const std::string& form) const {
  return export_trace(record_, path, trace_form_of(form));
}

}  // namespace headrace::python
