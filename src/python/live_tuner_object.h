// The live tuner with the Python objects that it calls: headrace._native.LiveTuner.
#pragma once

#include <headrace/live_tuner.h>
#include <headrace/report.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "python/live_loop_object.h"

namespace headrace::python {

// What a ledger and a report say of a run beside what was tried.
struct LiveRun {
  std::string title, command;
  std::string note;   // What went wrong, for a person; empty: nothing did.
  Settings baseline;  // What the objects had of every key that a candidate touches.
  std::vector<Report::NotTried> not_tried;
  std::vector<Applied> settings;  // In force.
};

struct LiveResult {
  std::string document;  // ledger.json.
  std::string text;      // For a terminal.
  std::string html;      // A report of one file.
};

// Every call holds the GIL and comes from the thread that makes the updates. What the objects below raise passes
// unchanged. traverse() and let_go() are Python's tp_traverse and tp_clear: the loop holds the user's model and
// optimizer, whose hooks hold the tuner.
class LiveTunerObject {
 public:
  // `progress`: functions of one text by what they are told of: "began", "machine" (that it is not quiet), "decided",
  // "ended"; what is missing is told nobody. `clock`: a function of monotonic seconds; None: this process' own.
  LiveTunerObject(pybind11::object loop, std::vector<Candidate> candidates, LiveOptions options, std::uint64_t seed,
                  pybind11::dict progress, pybind11::object clock);

  LiveTuner& tuner() { return tuner_; }
  LiveResult result(const LiveRun& run) const;
  pybind11::list trials() const;  // Of the ledger, each as a dict with the keys of ledger.json.

  int traverse(visitproc visit, void* arg) const;
  void let_go();

 private:
  LiveProgress progress_of();
  LiveTuner::Clock clock_of() const;
  void tell(const char* kind, const std::string& text) const;

  LiveLoopObject loop_;
  pybind11::object progress_, clock_;
  std::vector<Candidate> candidates_;
  LiveTuner tuner_;
};

}  // namespace headrace::python
