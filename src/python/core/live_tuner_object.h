// The live tuner with the Python objects that it calls: headrace._core.LiveTuner.
#pragma once

#include <headrace/live_tuner.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "python/core/live_loop_object.h"
#include "python/core/live_result.h"

namespace headrace::python {

// Every call holds the GIL and comes from the thread that makes the updates. What the objects below raise passes
// unchanged. traverse() and let_go() are Python's tp_traverse and tp_clear: the loop holds the user's model and
// optimizer, whose hooks hold the tuner.
class LiveTunerObject {
 public:
  // `progress`: functions of one text by what they are told of: "began", "machine" (that it is not quiet), "preparing",
  // "decided", "ended"; "prepared" is one of a candidate's key and seconds. What is missing is told nobody. `clock`: a
  // function of monotonic seconds; None: this process' own.
  LiveTunerObject(nanobind::object loop, std::vector<Candidate> candidates, LiveOptions options, std::uint64_t seed,
                  nanobind::dict progress, nanobind::object clock);

  LiveTuner& tuner() { return tuner_; }
  LiveResult result(const LiveRun& run) const;
  nanobind::object trials() const;  // Of the ledger, each as a dict with the keys of ledger.json.

  int traverse(visitproc visit, void* arg) const;
  void let_go();

 private:
  LiveProgress progress_of();
  LiveTuner::Clock clock_of() const;
  void tell(const char* kind, const std::string& text) const;

  LiveLoopObject loop_;
  nanobind::dict progress_;
  nanobind::object clock_;
  std::vector<Candidate> candidates_;
  LiveTuner tuner_;
};

}  // namespace headrace::python
