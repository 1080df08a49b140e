// What the files of a run tell: how it went, and what its checkpoints need to go on here.
#pragma once

#include <headrace/diagnosis.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include "app/recipe/recipe.h"
#include "core/hardware/machine.h"

namespace headrace {

// Those files of a run's folder that are whole; a document that is missing or faulty is null.
struct RunContents {
  nlohmann::ordered_json environment, result, profile, ledger;
  std::optional<Recipe> recipe;
  std::optional<std::string> newest_checkpoint;         // Its file name; by optimizer steps, never by a clock.
  std::map<std::string, std::string> checkpoint_texts;  // What its header says,
  nlohmann::ordered_json checkpoint_history;            // and of it the epochs' results.
  std::string log;                                      // The end of log.txt, 64 KiB.
  std::vector<std::string> torch_traces{};              // Of torch.profiler: name, and what its steps took.

  std::string verb() const;   // "train", ...; empty: unknown.
  bool is_of_script() const;  // `headrace profile SCRIPT.py`: there is no recipe, and no environment.json.
  // Of the first document that has them, or null: classes of memory over time, and what the loader counted.
  const nlohmann::ordered_json& memory() const;
  const nlohmann::ordered_json& loading() const;
  // It trained to its recipe's end (or profiled), so nothing is left to resume.
  bool is_finished() const;
};

// Name and value of what a reader wants to know first: verb, end, epochs, diagnosis, memory. What the files do not tell
// is "unavailable".
std::vector<std::pair<std::string, std::string>> run_facts(const RunContents& run);

// "performance_summary", "cache_stats", "memory_trends" (app/cli/doctor.h, RunReport::figures).
nlohmann::ordered_json run_figures(const RunContents& run);

// Losses that are not finite, an error or a signal that ended it, samples that could not be read, slow steps and
// epochs, what memory and loading tell (app/cli/run_memory.h, run_loading.h), settings that are for finding faults, the
// profile's own findings, data that is gone or has changed, and checkpoints of another version, machine or number of
// threads that are still wanted. Opens the run's data.
std::vector<Finding> content_findings(const RunContents& run, const Machine& here);

}  // namespace headrace
