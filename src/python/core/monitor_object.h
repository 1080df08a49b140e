// headrace._core.Monitor: a Monitor that Python opens and closes.
#pragma once

#include <headrace/monitor.h>
#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace headrace::python {

// After close() it tells what was so at the end, and takes nothing more; so it does in a process forked meanwhile (a
// DataLoader's worker), which does not have the monitor's thread, and where it ends nothing. Every call holds the GIL;
// those that wait let go of it within, when they have taken hold of what they wait for.
class MonitorObject {
 public:
  explicit MonitorObject(MonitorOptions options);
  ~MonitorObject();
  MonitorObject(const MonitorObject&) = delete;
  MonitorObject& operator=(const MonitorObject&) = delete;

  // Of a dict from texts to numbers; InvalidArgumentError names the key whose value is no number. false: dropped, or
  // closed.
  bool record(std::int64_t step, const nanobind::dict& metrics);
  bool flush(double timeout_s);
  void close();  // A second call does nothing.
  nlohmann::ordered_json status() const;
  nanobind::dict latest() const;
  nanobind::list take_alerts();
  void clear();

 private:
  std::shared_ptr<Monitor> open_monitor() const;  // Null: closed, or of another process.

  const pid_t owner_;
  std::shared_ptr<Monitor> monitor_;  // Null once it is closed. A flush() under way holds it, too.
  MonitorStatus last_status_;
  std::vector<MetricValue> last_values_;
  std::vector<Alert> last_alerts_;
};

}  // namespace headrace::python
