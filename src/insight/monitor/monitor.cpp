#include <headrace/monitor.h>
#include <headrace/trace.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/condition_variable.h"
#include "core/base/fail.h"
#include "core/hardware/system_figures.h"
#include "insight/monitor/kept_events.h"
#include "insight/monitor/record_queue.h"
#include "insight/monitor/sinks.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kQueueMax = 1 << 20;
constexpr std::size_t kBatch = 1024;  // Records that sinks get at once.
constexpr const char* kOff = "off";

MonitorOptions checked(MonitorOptions options) {
  if (options.queue_records < 1 || options.queue_records > kQueueMax) {
    fail(ErrorCode::invalid_argument, "monitor: queue_records: wanted 1 to {}, found {}", kQueueMax,
         options.queue_records);
  }
  if (options.write_interval.count() <= 0) {
    fail(ErrorCode::invalid_argument, "monitor: write_interval: wanted above 0 ns, found {}",
         options.write_interval.count());
  }
  if (options.system_interval.count() < 0) {
    fail(ErrorCode::invalid_argument, "monitor: system_interval: wanted at least 0 ns, found {}",
         options.system_interval.count());
  }
  return options;
}

// A sink as the status shows it. `sink` is the monitor thread's; null where it is off, and for what only reads the
// newest values.
struct Outlet {
  SinkStatus status;
  std::int64_t next_event = 0;  // The monitor thread's: the number of the first event that the sink has not had.
  std::unique_ptr<MonitorSink> sink;

  bool is_on() const { return status.applied.applied != kOff; }
  void turn_off(const std::string& reason) {
    status.applied.applied = kOff;
    status.applied.reason = reason;
  }
};

}  // namespace

struct Monitor::Impl {
  explicit Impl(MonitorOptions given) : options(checked(std::move(given))), queue(options.queue_records) {
    for (const AlertRule& rule : options.alerts) watches.emplace_back(rule);
    open("tensorboard", options.tensorboard,
         [this](Outlet& outlet) { outlet.sink = open_tensorboard(options.tensorboard, options.histograms); });
    open("csv", options.csv,
         [this](Outlet& outlet) { outlet.sink = open_metric_log(options.csv, MetricLogForm::csv); });
    open("json_lines", options.json_lines,
         [this](Outlet& outlet) { outlet.sink = open_metric_log(options.json_lines, MetricLogForm::jsonl); });
    open("events", options.events, [this](Outlet& outlet) { outlet.sink = open_event_log(options.events); });
    open("prometheus", options.prometheus, [this](Outlet& outlet) {
      listener = serve_prometheus(parse_listen_address("monitor: prometheus", options.prometheus), newest);
      outlet.status.applied.applied = fmt::format("http://{}/metrics", listener->address().text());
    });
    open("otlp", options.otlp, [this](Outlet& outlet) {
      const HostPort collector = parse_http_url("monitor: otlp", options.otlp, 4318);
      outlet.sink = open_otlp(collector, options.histograms);
      outlet.status.applied.applied = fmt::format("http://{}/v1/metrics", collector.text());
    });
    gpu = "unavailable: the machine's figures are off";
    if (options.system_interval.count() > 0) gpu = system.emplace().gpu();
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  // What cannot be opened is off; what makes no sense is the caller's to mend.
  void open(const char* key, const std::string& requested, const std::function<void(Outlet&)>& opened) {
    if (requested.empty()) return;
    Outlet& outlet = outlets.emplace_back();
    outlet.status.applied = {key, requested, requested, ""};
    try {
      opened(outlet);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument) throw;
      outlet.turn_off(error.what());
    }
    keep(outlet.is_on() ? opened_sink(outlet.status.applied) : failed_sink(outlet.status.applied));
  }

  // `mutex` is held, or no other thread is there yet.
  void keep(MonitorEvent event) {
    if (event.wall_ns == 0) event.wall_ns = wall_ns();
    events.add(std::move(event));
  }

  void tell(MonitorEvent event) {
    if (event.name.empty() || event.sentence.empty()) {
      fail(ErrorCode::invalid_argument, "monitor: event: wanted a name and a sentence, found \"{}\" and \"{}\"",
           event.name, event.sentence);
    }
    event.wall_ns = 0;
    const std::lock_guard lock(mutex);
    keep(std::move(event));
  }

  void add_sink(const std::string& key, std::unique_ptr<MonitorSink> sink) {
    if (sink == nullptr) fail(ErrorCode::invalid_argument, "monitor: {}: wanted a sink, found none", key);
    const std::lock_guard lock(mutex);
    Outlet& outlet = outlets.emplace_back();
    outlet.status.applied = {key, key, key, ""};
    outlet.next_event = events.begin();
    outlet.sink = std::move(sink);
    events_told = std::min(events_told, outlet.next_event);  // flush() waits for what it has not had, too.
  }

  bool record(std::int64_t step, std::vector<MetricValue> metrics) {
    for (const MetricValue& metric : metrics) {
      if (metric.name.empty())
        fail(ErrorCode::invalid_argument, "monitor: metrics: wanted a name, found an empty text");
    }
    if (!queue.try_push(MonitorRecord{step, wall_ns(), std::move(metrics)})) {
      dropped.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    return true;
  }

  bool flush(std::chrono::nanoseconds timeout) {
    const std::int64_t target = queue.pushed();
    std::unique_lock lock(mutex);
    const std::int64_t event_target = events.end();
    wanted = std::max(wanted, target);
    events_wanted = std::max(events_wanted, event_target);
    changed.notify_all();
    return changed.wait_for(lock, timeout, [&] { return handled >= target && events_told >= event_target; });
  }

  // A file that may not grow any more is a failed write of this thread, not the signal that ends the process.
  static void block_file_size_signal() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  }

  void run(const std::stop_token& stop) {
    name_this_thread("monitor");
    block_file_size_signal();
    Clock::time_point system_due = Clock::now();
    bool is_last = false;
    while (!is_last) {
      is_last = stop.stop_requested();  // Before the drain: what was recorded until then goes out.
      if (system && Clock::now() >= system_due) {
        system_due = Clock::now() + options.system_interval;
        deliver({system_record()});
      }
      drain();
      tell_sinks();
      if (!is_last) wait(stop);
    }
    tell_sinks();  // Of those that failed at the end.
  }

  void wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    const auto interval = system ? std::min(options.write_interval, options.system_interval) : options.write_interval;
    changed.wait_for(lock, stop, interval, [this] { return wanted > handled || events_wanted > events_told; });
  }

  void drain() {
    while (true) {
      std::vector<MonitorRecord> batch;
      MonitorRecord record;
      while (batch.size() < kBatch && queue.try_pop(record)) batch.push_back(std::move(record));
      if (batch.empty()) break;
      deliver(batch);
      const std::lock_guard lock(mutex);
      handled += std::ssize(batch);
      changed.notify_all();
    }
    std::this_thread::yield();  // Where flush() waits for a record that another thread is still writing.
  }

  MonitorRecord system_record() {
    MonitorRecord record{-1, wall_ns(), {}};
    for (SystemFigure& figure : system->read()) record.metrics.push_back({std::move(figure.name), figure.value});
    record.metrics.push_back({"monitor.recorded", static_cast<double>(queue.pushed())});
    record.metrics.push_back({"monitor.dropped", static_cast<double>(dropped.load(std::memory_order_relaxed))});
    return record;
  }

  void deliver(const std::vector<MonitorRecord>& records) {
    newest.take(records);
    std::int64_t odd = 0;
    for (const MonitorRecord& record : records) {
      for (const MetricValue& metric : record.metrics) odd += std::isfinite(metric.value) ? 0 : 1;
      judge(record);
    }
    {
      const std::lock_guard lock(mutex);
      not_finite += odd;
      for (const Alert& alert : fresh) keep(event_of(alert));
    }
    fresh.clear();
    for (Outlet* const outlet : all_outlets()) hand_over(*outlet, records);
    tell_sinks();
  }

  std::vector<Outlet*> all_outlets() {  // Of a list: they stay where they are.
    std::vector<Outlet*> all;
    const std::lock_guard lock(mutex);
    for (Outlet& outlet : outlets) all.push_back(&outlet);
    return all;
  }

  void hand_over(Outlet& outlet, const std::vector<MonitorRecord>& records) {
    const auto count = std::ssize(records);
    const std::int64_t lost = deliver_to(outlet, count, [&](MonitorSink& sink) { return sink.write(records); });
    const std::lock_guard lock(mutex);
    outlet.status.records += count - lost;
  }

  // Each sink that is on what it has not had of the events that there are now.
  void tell_sinks() {
    if (note_events_told()) return;
    for (Outlet* const outlet : all_outlets()) {
      if (outlet->sink != nullptr) tell(*outlet);
    }
    note_events_told();
  }

  // Between two tells. Whether no sink lacks any.
  bool note_events_told() {
    const std::lock_guard lock(mutex);
    std::int64_t told = events.end();
    for (const Outlet& outlet : outlets) {
      if (outlet.sink != nullptr) told = std::min(told, outlet.next_event);
    }
    if (std::exchange(events_told, told) != told) changed.notify_all();
    return told == events.end();
  }

  void tell(Outlet& outlet) {
    std::vector<MonitorEvent> missing;
    {
      const std::lock_guard lock(mutex);
      missing = events.from(outlet.next_event);
      outlet.status.lost += std::max<std::int64_t>(events.begin() - outlet.next_event, 0);
      outlet.next_event = events.end();
    }
    for (const MonitorEvent& event : missing) {
      if (outlet.sink == nullptr) return;
      const std::int64_t lost = deliver_to(outlet, 1, [&](MonitorSink& sink) { return sink.tell(event); });
      const std::lock_guard lock(mutex);
      outlet.status.events += 1 - lost;
    }
  }

  // How many of `count` records or events were lost, which is in the status then. A sink that fails is off from then
  // on, and the run goes on.
  std::int64_t deliver_to(Outlet& outlet, std::int64_t count,
                          const std::function<MonitorSink::Delivery(MonitorSink&)>& call) {
    MonitorSink::Delivery delivery;
    std::string failure;
    if (outlet.sink != nullptr) {
      try {
        delivery = call(*outlet.sink);
      } catch (const std::exception& error) {
        failure = error.what();
        if (failure.empty()) failure = "it failed without a reason";
      }
    } else if (!outlet.is_on()) {  // is_on() changes on this thread alone.
      delivery.lost = count;
    }
    if (!failure.empty()) outlet.sink.reset();
    const std::lock_guard lock(mutex);
    const bool is_first_failure = outlet.status.applied.reason.empty();
    if (!failure.empty()) {
      delivery.lost = count;
      outlet.turn_off(failure);
    } else if (!delivery.reason.empty()) {
      outlet.status.applied.reason = delivery.reason;
    }
    if (is_first_failure && !outlet.status.applied.reason.empty()) keep(failed_sink(outlet.status.applied));
    outlet.status.lost += delivery.lost;
    return delivery.lost;
  }

  void judge(const MonitorRecord& record) {
    if (record.step >= 0) newest_step = record.step;
    for (const MetricValue& metric : record.metrics) {
      for (const AlertWatch& watch : watches) {
        if (watch.rule().counted_by == metric.name) counts[metric.name] = metric.value;
      }
    }
    for (const MetricValue& metric : record.metrics) {
      for (AlertWatch& watch : watches) {
        if (watch.rule().metric != metric.name) continue;
        const auto counted = counts.find(watch.rule().counted_by);
        const std::optional<double> count =
            counted == counts.end() ? std::nullopt : std::optional<double>(counted->second);
        if (std::optional<Alert> alert = watch.add(metric.value, newest_step, count))
          fresh.push_back(std::move(*alert));
      }
    }
  }

  MonitorStatus status() const {
    MonitorStatus result;
    const std::lock_guard lock(mutex);
    for (const Outlet& outlet : outlets) result.sinks.push_back(outlet.status);
    result.recorded = queue.pushed();
    result.dropped = dropped.load(std::memory_order_relaxed);
    result.not_finite = not_finite;
    result.gpu = gpu;
    return result;
  }

  const MonitorOptions options;
  RecordQueue queue;
  std::atomic<std::int64_t> dropped{0};
  NewestValues newest{options.histograms};
  std::optional<SystemReader> system;  // The thread's; so are the next four.
  std::vector<AlertWatch> watches;
  std::map<std::string, double> counts;  // Newest values of what rules are counted by.
  std::int64_t newest_step = -1;
  std::vector<Alert> fresh;  // Of the records at hand.
  std::string gpu;

  mutable std::mutex mutex;  // Guards everything down to `events_wanted`; of an outlet the status.
  std::list<Outlet> outlets;
  KeptEvents events;
  std::int64_t taken_events = 0;  // Which one take_events() begins with.
  std::int64_t not_finite = 0;
  std::int64_t handled = 0, wanted = 0;             // Records: that sinks have, and that flush() waits for;
  std::int64_t events_told = 0, events_wanted = 0;  // events, likewise.
  std::condition_variable_any changed;
  std::unique_ptr<HttpListener> listener;
  std::jthread thread;  // Last: it stops first.
};

Monitor::Monitor(MonitorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Monitor::~Monitor() = default;

void Monitor::add_sink(const std::string& key, std::unique_ptr<MonitorSink> sink) {
  impl_->add_sink(key, std::move(sink));
}

bool Monitor::record(std::int64_t step, std::vector<MetricValue> metrics) {
  return impl_->record(step, std::move(metrics));
}

void Monitor::tell(MonitorEvent event) {
  impl_->tell(std::move(event));
}

bool Monitor::flush(std::chrono::nanoseconds timeout) {
  return impl_->flush(timeout);
}

MonitorStatus Monitor::status() const {
  return impl_->status();
}

std::vector<MetricValue> Monitor::latest() const {
  return impl_->newest.values();
}

std::vector<MonitorEvent> Monitor::take_events() {
  const std::lock_guard lock(impl_->mutex);
  std::vector<MonitorEvent> result = impl_->events.from(impl_->taken_events);
  impl_->taken_events = impl_->events.end();
  return result;
}

void Monitor::clear() {
  impl_->newest.clear();
  const std::lock_guard lock(impl_->mutex);
  impl_->taken_events = impl_->events.end();
}

}  // namespace headrace
