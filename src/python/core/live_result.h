// What a tuned run leaves behind: ledger.json and its report.
#pragma once

#include <headrace/live_tuner.h>
#include <headrace/report.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::python {

// Of a run that repeats another one.
struct RepeatedTurns {
  std::string source;  // That run's ledger.
  std::size_t applied = 0, all = 0;
};

// What a ledger and a report say of a run beside what was tried.
struct LiveRun {
  std::string title, command;
  std::string note;   // What went wrong, for a person; empty: nothing did.
  Settings baseline;  // What the objects had of every key that a candidate touches.
  std::vector<Report::NotTried> not_tried;
  std::vector<Applied> settings;  // In force.
  std::optional<RepeatedTurns> repeated{};
};

struct LiveResult {
  std::string document;  // ledger.json.
  std::string text;      // For a terminal.
  std::string html;      // A report of one file.
};

// `candidates`: those that were tried, as show_live_ledger() takes them.
LiveResult result_of(LiveLedger ledger, const LiveRun& run, std::span<const Candidate> candidates);

// A list of trials, each as a dict with the keys of ledger.json.
nanobind::object trials_of(const Ledger& ledger);

}  // namespace headrace::python
