#include "python/core/live_replay_object.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <utility>

#include "core/base/files.h"
#include "python/core/errors.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

constexpr std::int64_t kLedgerBytesMax = 256LL << 20;  // As many turns as there may be take about two MiB.

std::string turns_text(std::size_t turns) {
  return fmt::format("{} turn{}", turns, turns == 1 ? "" : "s");
}

}  // namespace

LiveReplayObject::LiveReplayObject(nb::object loop, const std::string& path, nb::dict progress)
    : loop_(std::move(loop)),
      progress_(std::move(progress)),
      replay_(loop_, parse_live_ledger(read_file(path, kLedgerBytesMax), path), path) {}

void LiveReplayObject::begin(std::int64_t updates) {
  tell("began",
       fmt::format("{} of {} are repeated, nothing is measured", turns_text(replay_.turns()), replay_.source()));
  replay_.begin(updates);
  tell_end();
}

void LiveReplayObject::after_update(std::int64_t update) {
  replay_.after_update(update);
  tell_end();
}

LiveResult LiveReplayObject::result(LiveRun run) const {
  run.repeated = RepeatedTurns{replay_.source(), replay_.turns_applied(), replay_.turns()};
  return result_of(replay_.ledger(), run, {});
}

nb::object LiveReplayObject::trials() const {
  if (!replay_.is_over()) return nb::list();
  return trials_of(replay_.ledger().ledger);
}

void LiveReplayObject::tell(const char* kind, const std::string& text) const {
  from_python([&] {
    if (progress_.contains(kind)) progress_[kind](text);
  });
}

void LiveReplayObject::tell_end() {
  if (has_told_end_ || replay_.turns_applied() < replay_.turns()) return;
  has_told_end_ = true;
  tell("ended", fmt::format("{} of {} are applied", turns_text(replay_.turns()), replay_.source()));
}

int LiveReplayObject::traverse(visitproc visit, void* arg) const {
  Py_VISIT(loop_.object().ptr());
  Py_VISIT(progress_.ptr());
  return 0;
}

void LiveReplayObject::let_go() {
  loop_.let_go();
  progress_ = nb::dict();
}

}  // namespace headrace::python
