#include "engine/verbs/train_progress.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "app/cli/live_view.h"
#include "core/base/clock.h"
#include "core/hardware/machine.h"

namespace headrace {
namespace {

constexpr std::int64_t kShowEvery_ns = 200'000'000;
constexpr std::int64_t kSplitSteps = 200;  // That a split is of, at most.
constexpr std::int64_t kSplit_ns = 1'000'000'000;
constexpr std::int64_t kEvents = 1 << 13;  // 256 KiB.

bool has_sinks(const ReportOptions& report) {
  return !(report.tensorboard.empty() && report.csv.empty() && report.json_lines.empty() && report.events.empty() &&
           report.prometheus.empty() && report.otlp.empty());
}

MonitorOptions monitor_options(const ReportOptions& report) {
  MonitorOptions options;
  options.tensorboard = report.tensorboard;
  options.csv = report.csv;
  options.json_lines = report.json_lines;
  options.events = report.events;
  options.prometheus = report.prometheus;
  options.otlp = report.otlp;
  return options;
}

TraceOptions step_spans() {
  TraceOptions options;
  options.events_per_thread = kEvents;
  for (const SpanName& name :
       {step::kStep, step::kDataWait, step::kTransfer, step::kForward, step::kBackward, step::kOptimizer}) {
    options.choice.names.emplace_back(name.text);
  }
  return options;
}

// Back to where some whole steps of this length began, however long they take.
std::int64_t split_time_ns(std::int64_t step_ns) {
  const std::int64_t least = 4 * std::max<std::int64_t>(step_ns, 1);
  return std::max(least, std::min(kSplit_ns, kSplitSteps * std::max<std::int64_t>(step_ns, 1)));
}

// Of one that began before the first end that a full ring still holds, parts may be lost.
bool has_whole_step(const TraceRecord& record) {
  std::int64_t whole_from_ns = 0;
  if (record.dropped > 0) {
    whole_from_ns = std::numeric_limits<std::int64_t>::max();
    for (const TraceEvent& event : record.events) whole_from_ns = std::min(whole_from_ns, event.end_ns);
  }
  return std::any_of(record.events.begin(), record.events.end(), [&](const TraceEvent& event) {
    return record.names[event.name].text == step::kStep.text && event.end_ns > event.begin_ns &&
           event.begin_ns >= whole_from_ns;
  });
}

std::vector<MetricValue> values_of(const std::map<std::string, double>& figures) {
  std::vector<MetricValue> values;
  for (const auto& [name, value] : figures) values.push_back({name, value});
  return values;
}

}  // namespace

std::map<std::string, double> split_figures(const TraceRecord& record) {
  if (record.dropped > 0 || !has_whole_step(record)) return {};
  const TimeSplit split = split_time(record);
  const auto steps = static_cast<double>(split.steps);
  return {{"time.data_wait_s", split.data_wait_s / steps}, {"time.transfer_s", split.transfer_s / steps},
          {"time.forward_s", split.forward_s / steps},     {"time.backward_s", split.backward_s / steps},
          {"time.optimizer_s", split.optimizer_s / steps}, {"time.other_s", split.other_s / steps}};
}

std::map<std::string, double> loader_figures(const LoaderStatistics& before, const LoaderStatistics& now) {
  std::map<std::string, double> figures;
  // Another loader may have taken its place, whose counts begin anew.
  const std::int64_t since = now.batches >= before.batches ? before.batches : 0;
  const std::int64_t ready = now.batches >= before.batches ? before.ready_batches : 0;
  if (now.batches > since) {
    figures["loader.queue_depth"] =
        static_cast<double>(now.ready_batches - ready) / static_cast<double>(now.batches - since);
  }
  const std::int64_t lookups = now.cache_hits + now.cache_misses;
  if (lookups > 0) {
    figures["cache.hit_rate"] = static_cast<double>(now.cache_hits) / static_cast<double>(lookups);
    figures["cache.lookups"] = static_cast<double>(lookups);
  }
  return figures;
}

TrainProgress::TrainProgress(Console& console, Training& training)
    : console_(console), training_(training), batches_(training.batches_per_epoch()) {
  const ReportOptions& report = training.recipe().report;
  if (has_sinks(report)) {
    monitor_.emplace(monitor_options(report));
    for (const MonitorEvent& event : monitor_->take_events()) {
      event.level < EventLevel::warning ? console_.info(event.sentence) : console_.warning(event.sentence);
    }
    tell_settings();
  }
  if (monitor_ || console_.shows_progress()) trace_.emplace(step_spans());
  run_first_step_ = steps_done();
  run_begin_ns_ = monotonic_ns();
  begin_epoch();
}

void TrainProgress::begin_epoch() {
  begin_ns_ = monotonic_ns();
  first_batch_ = training_.trainer().progress().batch;
  shown_ns_ = samples_ = steps_ = 0;
  left_out_s_ = 0;
}

double TrainProgress::epoch_seconds() const {
  return seconds_since(begin_ns_) - left_out_s_;
}

std::int64_t TrainProgress::steps_done() const {
  const Progress& progress = training_.trainer().progress();
  return progress.epoch * batches_ + progress.batch;
}

// "Training  epoch 2/4   61 %  Loss: 0.3121  Avg Loss: 0.3310  3412 samples/s  11.2 s left", and the view below it.
void TrainProgress::step(const StepDone& done) {
  samples_ += done.samples;
  ++steps_;
  const std::int64_t now = monotonic_ns();
  if (!trace_ || now - shown_ns_ < kShowEvery_ns) return;
  shown_ns_ = now;
  const std::map<std::string, double> known = figures(done);
  if (monitor_) {
    tell_settings();
    monitor_->record(steps_done(), values_of(known));
    tell_problems();
  }
  const std::int64_t epochs = training_.recipe().train.epochs;
  const double left =
      epoch_seconds() / static_cast<double>(steps_) * static_cast<double>(batches_ - first_batch_ - steps_);
  const auto mean = known.find("train.mean_loss");
  std::vector<std::string> lines{
      fmt::format("Training  epoch {}/{}  {:3.0f} %  Loss: {:.4f}  Avg Loss: {}  {:.0f} samples/s  {} left",
                  done.progress.epoch + 1, epochs,
                  100.0 * static_cast<double>(first_batch_ + steps_) / static_cast<double>(batches_),
                  known.at("train.loss"), mean == known.end() ? "unavailable" : fmt::format("{:.4f}", mean->second),
                  known.at("samples_per_s"), duration_text(left))};
  const std::int64_t steps = steps_done();
  LivePlace place{steps, epochs * batches_, {}};
  const double seconds = seconds_since(run_begin_ns_);
  if (seconds > 0) place.steps_per_s = static_cast<double>(steps - run_first_step_) / seconds;
  for (std::string& line : live_lines(place, known)) lines.push_back(std::move(line));
  console_.progress_view(lines);
}

std::map<std::string, double> TrainProgress::figures(const StepDone& done) {
  std::map<std::string, double> figures = split_figures(trace_->recent(split_time_ns(done.step_ns)));
  const LoaderStatistics loader = training_.loader().statistics();
  figures.merge(loader_figures(loader_before_, loader));
  loader_before_ = loader;
  figures["train.loss"] = done.loss.item<double>();
  if (const auto mean = training_.trainer().mean_loss()) figures["train.mean_loss"] = *mean;
  figures["train.epoch"] = static_cast<double>(done.progress.epoch + 1);
  figures["train.lr"] = training_.trainer().learning_rate();
  figures["samples_per_s"] = static_cast<double>(samples_) / epoch_seconds();
  if (const auto bytes = resident_memory()) figures["process.resident_bytes"] = static_cast<double>(*bytes);
  return figures;
}

void TrainProgress::end_epoch(const EpochResult& result) {
  if (!monitor_) return;
  std::map<std::string, double> figures{{"train.epoch_loss", result.loss}};
  if (result.val) {
    figures["val.loss"] = result.val->loss;
    figures["val.accuracy"] = result.val->accuracy;
  }
  monitor_->record(steps_done(), values_of(figures));
  tell_problems();
}

void TrainProgress::end_run() {
  if (!monitor_) return;
  monitor_->flush();
  tell_problems();
}

std::optional<TraceRecord> TrainProgress::take_steps() {
  if (!trace_) return std::nullopt;
  TraceRecord record = trace_->stop();
  trace_.reset();
  if (!has_whole_step(record)) return std::nullopt;
  return record;
}

void TrainProgress::tell_settings() {
  for (const Applied& setting : training_.decided()) {
    if (settings_told_.insert(setting.key).second) monitor_->tell(event_of(setting));
  }
}

void TrainProgress::tell_problems() {
  for (const MonitorEvent& event : monitor_->take_events()) {
    if (event.name == "sink") console_.warning(event.sentence);
  }
}

}  // namespace headrace
