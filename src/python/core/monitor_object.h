// headrace._core.Monitor: a Monitor that Python opens and closes.
#pragma once

#include <headrace/monitor.h>
#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
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
  // Of texts, whole numbers, numbers and truths by name; InvalidArgumentError names what is neither, or the level.
  // After close() it is kept for take_events() alone: no sink is left.
  void tell(const std::string& level, std::string name, std::string sentence, const nanobind::dict& fields,
            std::int64_t step);
  void tell_setting(const Applied& setting);
  nanobind::list take_events();
  void clear();

 private:
  void keep(MonitorEvent event);
  std::shared_ptr<Monitor> open_monitor() const;  // Null: closed, or of another process.

  const pid_t owner_;
  std::shared_ptr<Monitor> monitor_;  // Null once it is closed. A flush() under way holds it, too.
  MonitorStatus last_status_;
  std::vector<MetricValue> last_values_;
  std::vector<MonitorEvent> last_events_;
};

}  // namespace headrace::python
