// The units of a loop whose hooks are in Python: headrace._core.LoopUnits.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "insight/tune/loop_units.h"
#include "python/core/live_tuner_object.h"

namespace headrace::python {

// Every call holds the GIL. traverse() and let_go() are as LiveTunerObject's.
//
// A tuner that follows is told of each unit here, without a call of Python's; what it raises passes unchanged.
class LoopUnitsObject {
 public:
  // What is left to Python's own hook at the end of a step.
  enum End : int {
    nothing = 0,
    begun = 1,     // The first unit begins; not told where nobody has asked, or calls were seen.
    unit = 2,      // unit() is to be told.
    followed = 3,  // The tuner was told of it, and is to be looked at.
  };

  LoopUnitsObject(std::size_t optimizers, std::shared_ptr<EpochCounts> epochs, std::int64_t updates)
      : units_(optimizers, std::move(epochs), updates) {}

  LoopUnits& units() { return units_; }
  // In the loop's own thread, which alone walks through the optimizers' hooks, and in none of the callbacks.
  bool is_at_work_here() const noexcept;
  bool begin_step(std::size_t optimizer);
  End end_step(std::size_t optimizer, double now_s);

  // From the next unit on. `tuner`: a LiveTuner, or None. `ended`: a dict that changes its size when the tuner has to
  // hear of something before it hears of a unit.
  void follow(nanobind::object tuner, nanobind::dict ended);
  // At the end of the unit at hand, whatever it is; before the first one, at its beginning and its end.
  void call_back() noexcept { calls_back_ = true; }
  void set_asks(bool asks) noexcept { asks_ = asks; }
  void set_looks_for_calls(bool looks) noexcept { looks_for_calls_ = looks; }

  int traverse(visitproc visit, void* arg) const;
  void let_go();

 private:
  LoopUnits units_;
  bool asks_ = true;  // begin_step() tells.
  bool looks_for_calls_ = false, calls_back_ = false;
  nanobind::object tuner_object_ = nanobind::none();
  LiveTunerObject* tuner_ = nullptr;  // Of tuner_object_.
  nanobind::dict ended_;
  std::size_t ended_size_ = 0;  // When the tuner began to follow.
};

}  // namespace headrace::python
