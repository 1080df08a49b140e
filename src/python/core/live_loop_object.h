// A training run under way whose hooks are in Python, as the live tuner sees it.
#pragma once

#include <headrace/live_loop.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace headrace::python {

// Any object with these methods (python/headrace/_tuned_loop.py has one):
//
//   apply(settings: dict[str, str]) -> Any; a headrace.Error that it raises is Error of the same code here
//   replay(reference, candidate: dict[str, str], full_precision: bool) -> dict with the fields of ReplayDistance by
//     their names, or {"failure": (code, sentence)}; full_precision: ReplayUse::compare
//   distance_between_calls() -> float | None
//   updates_left() -> int | None
//   queued_units() -> int; an object without it loads nothing ahead
//   units_ahead() -> int; an object without it computes where its host does
//   agree(yes: bool) -> bool; an object without it trains alone
//
// Every other exception passes as Python raised it, and so does what a missing field or other method raises. Each call
// holds the GIL, as its caller does. References to Python's objects that C++ holds are hidden from the garbage
// collector unless the owner tells it of object().
class LiveLoopObject final : public LiveLoop {
 public:
  explicit LiveLoopObject(nanobind::object object)
      : object_(std::move(object)), has_others_(nanobind::hasattr(object_, "agree")) {}

  void apply(const Settings& settings) override;
  Replay replay(const Settings& reference, const Settings& candidate, ReplayUse use) override;
  std::optional<double> distance_between_calls() override;
  std::optional<std::int64_t> updates_left() override;
  std::int64_t queued_units() override;
  std::int64_t units_ahead() override;
  bool agree(bool yes) override;

  const nanobind::object& object() const { return object_; }
  void let_go() { object_ = nanobind::none(); }  // No call may follow.

 private:
  std::int64_t count_of(const char* method) const;  // 0 of an object without it.

  nanobind::object object_;
  bool has_others_;
};

}  // namespace headrace::python
