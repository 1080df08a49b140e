#include "engine/verbs/train_progress.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "app/cli/live_view.h"
#include "core/base/clock.h"
#include "core/hardware/machine.h"
#include "insight/diagnose/live_split.h"

namespace headrace {
namespace {

constexpr std::int64_t kShowEvery_ns = 200'000'000;
constexpr std::int64_t kEvents = 1 << 13;  // 256 KiB.
constexpr const char* kResident = "process.resident_bytes";
constexpr const char* kFlights = "report.flights";

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
  options.alerts = alert_rules(report.alerts);
  return options;
}

// Of a flight recorder everything, for as long as its memory reaches back.
TraceOptions trace_options(const ReportOptions& report) {
  TraceOptions options;
  if (!report.flights.empty()) {
    options.memory_max = kFlightMemory;
    return options;
  }
  options.events_per_thread = kEvents;
  for (const SpanName& name :
       {step::kStep, step::kDataWait, step::kTransfer, step::kForward, step::kBackward, step::kOptimizer}) {
    options.choice.names.emplace_back(name.text);
  }
  return options;
}

// Without what a flight recorder's trace has beside the steps, and of them the newest.
TraceRecord steps_alone(TraceRecord record) {
  std::erase_if(record.events,
                [&](const TraceEvent& event) { return record.names[event.name].category != step::kStep.category; });
  const std::int64_t surplus = std::ssize(record.events) - kEvents;
  if (surplus > 0) {
    record.events.erase(record.events.begin(), record.events.begin() + surplus);
    record.dropped += surplus;
  }
  return record;
}

std::vector<MetricValue> values_of(const std::map<std::string, double>& figures) {
  std::vector<MetricValue> values;
  for (const auto& [name, value] : figures) values.push_back({name, value});
  return values;
}

}  // namespace

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
  const MonitorOptions options = monitor_options(report);
  if (has_sinks(report) || !options.alerts.empty()) {
    monitor_.emplace(options);
    for (const MonitorEvent& event : monitor_->take_events()) {
      event.level < EventLevel::warning ? console_.info(event.sentence) : console_.warning(event.sentence);
    }
    tell_settings();
  }
  watch_for_alerts();
  if (monitor_ || console_.shows_progress() || !report.flights.empty()) trace_.emplace(trace_options(report));
  if (!report.flights.empty()) record_flights(report.flights);
  run_first_step_ = steps_done();
  run_begin_ns_ = monotonic_ns();
  begin_epoch();
}

void TrainProgress::record_flights(const std::string& folder) {
  Applied setting{kFlights, folder, folder, ""};
  try {
    flights_.emplace(*trace_, FlightRecorderOptions{.folder = folder, .signal = SIGUSR2});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) throw;
    setting.applied = "off";
    setting.reason = error.what();
  }
  if (flights_) {
    console_.info(
        fmt::format("flight recorder: a slow step, a failure or SIGUSR2 to process {} writes the last minute into {}",
                    ::getpid(), folder));
  }
  tell_setting_asked(std::move(setting));
}

void TrainProgress::watch_for_alerts() {
  const AlertOptions& alerts = training_.recipe().report.alerts;
  for (Applied& setting : alert_settings(alerts, training_.loader().applied_cache(), resident_memory())) {
    tell_setting_asked(std::move(setting));
  }
}

void TrainProgress::tell_setting_asked(Applied setting) {
  const MonitorEvent event = event_of(setting);
  if (event.level >= EventLevel::warning) console_.warning(event.sentence);
  if (monitor_) monitor_->tell(event);
  watched_.settings.push_back(std::move(setting));
}

void TrainProgress::begin_epoch() {
  begin_ns_ = monotonic_ns();
  first_batch_ = training_.trainer().progress().batch;
  shown_ns_ = samples_ = steps_ = shown_samples_ = 0;
  left_out_s_ = shown_s_ = 0;
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
  if (flights_) flights_->end_step(done.step_ns);
  const std::int64_t now = monotonic_ns();
  if (!trace_ || now - shown_ns_ < kShowEvery_ns) return;
  shown_ns_ = now;
  if (flights_) tell_flights(flights_->status());
  const std::map<std::string, double> known = figures(done);
  if (monitor_) {
    tell_settings();
    std::map<std::string, double> recorded = known;
    recorded.erase(kResident);  // The monitor reads it once a second: a trend is of values at equal distances.
    monitor_->record(steps_done(), values_of(recorded));
    tell_events();
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
  // Since the last look: a mean over the epoch would hide that steps have become slower.
  const double now_s = epoch_seconds();
  figures["samples_per_s"] = static_cast<double>(samples_ - shown_samples_) / (now_s - shown_s_);
  shown_samples_ = samples_;
  shown_s_ = now_s;
  if (const auto bytes = resident_memory()) figures[kResident] = static_cast<double>(*bytes);
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
  tell_events();
}

void TrainProgress::end_run() {
  if (flights_) tell_flights(flights_->end());
  if (!monitor_) return;
  monitor_->flush();
  tell_events();
}

std::optional<TraceRecord> TrainProgress::take_steps() {
  if (!trace_) return std::nullopt;
  flights_.reset();
  TraceRecord record = steps_alone(trace_->stop());
  trace_.reset();
  if (!has_whole_step(record)) return std::nullopt;
  return record;
}

void TrainProgress::tell_settings() {
  for (const Applied& setting : training_.decided()) {
    if (settings_told_.insert(setting.key).second) monitor_->tell(event_of(setting));
  }
}

void TrainProgress::tell_events() {
  for (const MonitorEvent& event : monitor_->take_events()) {
    if (event.name == "alert") watched_.add(event);
    if (event.name != "alert" && event.name != "sink") continue;
    event.level < EventLevel::warning ? console_.info(event.sentence) : console_.warning(event.sentence);
  }
}

void TrainProgress::tell_flights(const FlightRecorder::Status& flown) {
  for (std::size_t i = watched_.flights.size(); i < flown.dumps.size(); ++i) {
    const FlightRecorder::Status::Dump& dump = flown.dumps[i];
    MonitorEvent event;
    event.name = "flight";
    event.sentence = fmt::format("flight recorder: {}: {}", dump.reason, dump.path);
    event.fields = {{"reason", dump.reason}, {"path", dump.path}, {"events", dump.events}, {"dropped", dump.dropped}};
    event.step = steps_done();
    console_.info(event.sentence);
    if (monitor_) monitor_->tell(std::move(event));
  }
  watched_.flights = flown.dumps;
  if (flown.problem != std::exchange(flight_problem_told_, flown.problem)) console_.warning(flown.problem);
}

}  // namespace headrace
