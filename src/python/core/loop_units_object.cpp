#include "python/core/loop_units_object.h"

#include <utility>

namespace headrace::python {

namespace nb = nanobind;

namespace {

LoopThread here() {
  return PyThread_get_thread_ident();
}

// While something of ours is at work.
class Telling {
 public:
  explicit Telling(LoopUnits& units) : units_(units) { units_.set_telling(true); }
  ~Telling() { units_.set_telling(false); }
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;

 private:
  LoopUnits& units_;
};

}  // namespace

bool LoopUnitsObject::is_at_work_here() const noexcept {
  return !units_.is_telling() && (!units_.thread() || units_.is_own(here()));
}

bool LoopUnitsObject::begin_step(std::size_t optimizer) {
  return units_.begin_step(optimizer, here()) && asks_;
}

LoopUnitsObject::End LoopUnitsObject::end_step(std::size_t optimizer, double now_s) {
  const LoopUnits::End end = units_.end_step(optimizer, here(), now_s);
  if (end == LoopUnits::End::nothing) return nothing;
  const bool saw_no_call = looks_for_calls_ && !units_.was_called();
  if (end == LoopUnits::End::first) return saw_no_call || calls_back_ ? begun : nothing;
  const bool calls_back = std::exchange(calls_back_, false);
  if (tuner_ == nullptr || calls_back || saw_no_call || !units_.problem().empty()) return unit;
  if (ended_.size() != ended_size_) return unit;
  const nb::object held = tuner_object_;  // What it calls may let go of it.
  LiveTuner& tuner = tuner_->tuner();
  const Telling telling(units_);
  tuner.after_update(units_.unit());
  const bool is_looked_at = std::exchange(calls_back_, false) || tuner.keeps_call() || !tuner.watching();
  return is_looked_at ? followed : nothing;
}

void LoopUnitsObject::follow(nb::object tuner, nb::dict ended) {
  tuner_ = tuner.is_none() ? nullptr : &nb::cast<LiveTunerObject&>(tuner);
  tuner_object_ = std::move(tuner);
  ended_size_ = ended.size();
  ended_ = std::move(ended);
}

int LoopUnitsObject::traverse(visitproc visit, void* arg) const {
  Py_VISIT(tuner_object_.ptr());
  Py_VISIT(ended_.ptr());
  return 0;
}

void LoopUnitsObject::let_go() {
  tuner_ = nullptr;
  tuner_object_ = nb::none();
  ended_ = nb::dict();
}

}  // namespace headrace::python
