// A replay of a tuned run with the Python objects that it calls: headrace._core.LiveReplay.
#pragma once

#include <headrace/live_replay.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "python/core/live_loop_object.h"
#include "python/core/live_result.h"

namespace headrace::python {

// Every call holds the GIL and comes from the thread that makes the updates. What the objects below raise passes
// unchanged. traverse() and let_go() are as LiveTunerObject's.
class LiveReplayObject {
 public:
  // `path`: a ledger.json that hr.autotune or tune.online wrote. `progress` as LiveTunerObject's, of which "began" and
  // "ended" are told. Error as those of parse_live_ledger() and of reading; out_of_memory: the file is larger than any
  // ledger.
  LiveReplayObject(nanobind::object loop, const std::string& path, nanobind::dict progress);

  LiveReplay& replay() { return replay_; }
  const LiveReplay& replay() const { return replay_; }
  void begin(std::int64_t updates);  // As LiveReplay's.
  void after_update(std::int64_t update);
  LiveResult result(LiveRun run) const;
  nanobind::object trials() const;  // As LiveTunerObject's; empty until it is over, which is when they hold.

  int traverse(visitproc visit, void* arg) const;
  void let_go();

 private:
  void tell(const char* kind, const std::string& text) const;
  void tell_end();

  LiveLoopObject loop_;
  nanobind::dict progress_;
  LiveReplay replay_;
  bool has_told_end_ = false;
};

}  // namespace headrace::python
