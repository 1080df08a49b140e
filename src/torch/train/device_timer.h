// How long a device works on the phases of a step, by events that are read when it has passed them: nothing waits.
#pragma once

#include <headrace/device_figures.h>
#include <headrace/trace.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "core/trace/track.h"
#include "torch/device/accelerator.h"

namespace headrace {

// Works while it is wanted or a Trace records its spans: the phases, on a track of the device, are
// "device_forward" and its like, of category "device". The host records one event a phase; where it is off, a phase
// costs a branch. Not thread-safe.
class DeviceTimer {
 public:
  // nullptr: nothing is ever timed. `track`: the device's name in a trace: "cuda:0".
  DeviceTimer(Accelerator* accelerator, std::string track);

  bool can_time() const { return accelerator_ != nullptr; }
  void set_wanted(bool wanted);  // Starts anew where it was not.

  // Whatever was queued since the last phase is of none.
  void begin() {
    if (accelerator_ != nullptr) begin_step();
  }
  // What was queued since the last begin() or end() is of this phase.
  void end(DevicePhase phase) {
    if (last_.moment != nullptr) end_phase(phase);
  }
  // Those that the device has passed by now are in it.
  const DeviceTimes& read();

 private:
  static constexpr std::size_t kWaitingMost = 4096;  // Phases: some hundred steps.
  struct Mark {
    std::shared_ptr<DeviceMoment> moment{};  // Owners: the phases at either side.
    TraceMoment launched{};                  // When the host queued it.
  };
  struct Queued {
    Mark begin, end;
    DevicePhase phase;
    bool starts_anew;  // What lies before its begin is no gap between phases.
  };
  // A moment on the trace's clock and on that of the operating system.
  struct Clocks {
    TraceMoment trace{};
    std::int64_t ns = 0;
    static Clocks now();
  };

  void begin_step();
  void end_phase(DevicePhase phase);
  Mark mark() const;
  void take(const Queued& done);
  void add_span(const Queued& done, double begin_s, double end_s);

  Accelerator* const accelerator_;
  const std::string track_name_;
  bool is_wanted_ = false, starts_anew_ = true;
  Mark last_{};
  std::deque<Queued> waiting_;  // The oldest first.
  DeviceTimes times_{};
  std::shared_ptr<DeviceMoment> last_read_{};
  double at_s_ = 0;  // Of last_read_, on the device, since the first phase.

  const Clocks start_ = Clocks::now();
  std::optional<double> offset_s_{};  // What makes seconds since start_ on the host of seconds on the device.
  TraceMoment track_end_{};           // Where the last span ends.
  std::optional<TraceTrack> track_{};
};

}  // namespace headrace
