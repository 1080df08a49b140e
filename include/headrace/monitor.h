// Watches a run: its metrics and the machine's figures go to files and listeners, and alerts are judged, all of it on a
// thread of the monitor's own. The training loop waits for none of it.
#pragma once

#include <headrace/alerts.h>
#include <headrace/error.h>
#include <headrace/monitor_event.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace {

struct MetricValue {
  std::string name;  // "train.loss": any text that is not empty; what a form cannot hold it writes otherwise.
  double value = 0;
};

struct MonitorRecord {
  std::int64_t step = -1;    // -1: of no step, as the machine's figures.
  std::int64_t wall_ns = 0;  // Since 1970.
  std::vector<MetricValue> metrics;
};

// Where records go. The monitor's thread alone calls it.
class MonitorSink {
 public:
  // What became of the records of one write(), or of one event. Lost ones are counted and shown; the sink is asked
  // again.
  struct Delivery {
    std::int64_t lost = 0;  // Records, or events.
    std::string reason;     // Why, in one line; empty without a loss.
  };
  virtual ~MonitorSink() = default;
  // Error: it can never take anything again; it is told once, and the sink is not called any more.
  virtual Delivery write(std::span<const MonitorRecord> records) = 0;
  // The same that take_events() has, in their order; an alert after the write() of the records that raised it. A sink
  // that is added later gets what the monitor still keeps. Losses and errors as write()'s.
  virtual Delivery tell(const MonitorEvent& /*event*/) { return {}; }
};

struct MonitorOptions {
  std::string tensorboard{};  // A folder for event files, made if need be; empty: off. So are the following.
  std::string csv{};          // A file, appended to.
  std::string json_lines{};   // The same.
  std::string events{};       // A file to which event_json() of each event is appended, one a line.
  // "PORT", "HOST:PORT" or "[HOST]:PORT" at which Prometheus' text is served, as /metrics. Without a host 127.0.0.1:
  // who may reach another one may read all metrics. Port 0: any that is free; MonitorStatus tells it.
  std::string prometheus{};
  // "http://HOST[:4318]", to whose /v1/metrics OTLP goes as JSON. No https: this library has no TLS; send it by way of
  // a collector on this machine.
  std::string otlp{};
  // Patterns (*, ?) of metrics that are durations in seconds, at most 64 names of them: beside each, TensorBoard,
  // Prometheus and OTLP get the histogram "NAME.distribution" of its values since the monitor began.
  std::vector<std::string> histograms{};
  std::chrono::nanoseconds system_interval = std::chrono::seconds(1);        // Of the machine's figures; 0: none.
  std::chrono::nanoseconds write_interval = std::chrono::milliseconds(200);  // How often the thread looks; above 0.
  std::int64_t queue_records = 4096;  // Held between two looks; 1 to 2^20, rounded up to a power of two.
  std::vector<AlertRule> alerts{};
};

struct SinkStatus {
  // requested: the path or address; applied: what it is in force, or "off"; reason: why not, also when it failed later.
  Applied applied;
  std::int64_t records = 0;  // Handed over,
  std::int64_t events = 0;   // likewise.
  std::int64_t lost = 0;     // Both, not delivered; after a failure all records that came.
};

struct MonitorStatus {
  std::vector<SinkStatus> sinks;  // Those that were asked for, in the order of MonitorOptions, then added ones.
  std::int64_t recorded = 0;      // Taken by record().
  std::int64_t dropped = 0;       // Not taken, as the queue was full.
  std::int64_t not_finite = 0;    // Values that were NaN or infinite, as they passed.
  std::string gpu;                // Empty: its figures are there; else "unavailable: " and why.
};

// Owns one thread, and another one for the listener, from construction to destruction. Safe to call from any thread.
//
// A sink that cannot be opened, or fails, ends nothing: SinkStatus says why. Memory: the queue, and the newest value of
// each name, of which 10,000 are kept apart for Prometheus and latest(); the newest 1,000 events.
//
// It tells its own sinks as settings, "monitor.csv", and of one that fails as the event "sink".
class Monitor {
 public:
  // Error{invalid_argument} names the option, or the alert's field.
  explicit Monitor(MonitorOptions options = {});
  // Hands over what is in the queue, closes the sinks and joins.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // `key` names it in the status.
  void add_sink(const std::string& key, std::unique_ptr<MonitorSink> sink);
  // Never waits for a sink, a file or a lock: where the queue is full, false, and counted as dropped. The cost is what
  // monitor_bench prints. Records reach the sinks in their order.
  bool record(std::int64_t step, std::vector<MetricValue> metrics);
  // Tells an event to all sinks, from the monitor's thread. Takes a lock that is held for moments only: for what
  // happens now and then, not in every step. Error{invalid_argument}: no name or no sentence.
  void tell(MonitorEvent event);
  // Waits until the sinks have all that was recorded and told before. false: not within `timeout`.
  bool flush(std::chrono::nanoseconds timeout = std::chrono::seconds(10));

  MonitorStatus status() const;
  std::vector<MetricValue> latest() const;  // The newest value of each name, by name.
  std::vector<MonitorEvent> take_events();  // Those since the last call, of them the newest 1,000.
  // Forgets the newest values and the events that nobody took. What sinks have, their counts and what the rules have
  // seen stays.
  void clear();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
