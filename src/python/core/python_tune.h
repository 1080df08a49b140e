// The loop of `headrace tune` on the objects of a Python training loop.
#pragma once

#include <headrace/tune.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace headrace::python {

struct TuneRequest {
  TuneOptions options;
  std::uint64_t seed = 0;
  std::string title;    // On the report.
  std::string command;  // The call, for a person who wants to repeat it.
  std::string out;      // Folder for report.html, ledger.json and the traces; empty: nothing is written.
  int width = 100;      // Columns of the report as text.
};

struct TuneResult {
  std::string document;  // ledger.json.
  std::string report;    // Text for a terminal.
};

// Measures, tries what `subject` (headrace._subject.Subject) proposes, and leaves it with what was kept, in the state
// it was made with. `on_progress(kind, text)` is told "step" (what is being done), "diagnosis", "machine" (that it is
// not quiet) and "decided"; an exception out of it ends the tuning. Called with the GIL; throws what the user's code
// raised, Ctrl-C included, with the subject to be put back by the caller.
TuneResult tune_objects(const nanobind::object& subject, const TuneRequest& request,
                        const nanobind::callable& on_progress);

// Measures the loop of `subject` (headrace._diagnose_loop.DiagnosedLoop) as it is: at most `steps` traced steps and
// differential runs, in some `budget_s` seconds. Returns {"diagnosis", "time_split"} as JSON. Called with the GIL;
// throws as tune_objects() does.
std::string diagnose_objects(const nanobind::object& subject, std::int64_t steps, double budget_s);

}  // namespace headrace::python
