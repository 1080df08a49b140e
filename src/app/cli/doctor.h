// The verb doctor: what is wrong with this machine, with the files of a run, or with what a run tells of itself.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/loading_advice.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include "app/cli/console.h"
#include "app/cli/invocation.h"
#include "core/hardware/machine.h"

namespace headrace {

// Of the memory that may be used: more in use than this is a finding.
inline constexpr double kMemoryNearlyFull = 0.8;

// What makes measuring or training worse here. `root` is prefixed to /proc and /sys, for tests on a fake tree. Reads
// the environment, too.
std::vector<Finding> machine_findings(const Machine& machine, const std::string& root = "");

// debug_mode: a variable of the environment makes each step pay for finding faults; nullopt: this one does not.
std::optional<Finding> debug_variable_finding(const std::string& name, const std::string& value);

struct RunReport {
  std::vector<std::pair<std::string, std::string>> facts;  // Verb, end, accuracy, ...: name and value.
  std::vector<Finding> findings;
  // Changes of settings that a model of the loader predicts a gain of, the largest first. Their findings name them,
  // too.
  std::vector<Proposal> proposals;
  // "performance_summary", "cache_stats" and "memory_trends": what the run has of each, or a text that says why not.
  nlohmann::ordered_json figures;
};
// What is missing, cut short or damaged in a run's folder, and what its files tell (app/cli/run_contents.h) to somebody
// on the machine `here`; or, of a file, what the JSON of a performance optimizer's get_performance_summary() tells.
// Changes nothing. Error{not_found}: there is no such folder or file; {corrupt_data}: the file is no such summary.
RunReport check_run(const std::filesystem::path& run, const Machine& here);

// Exit code 3 when there is a finding.
int run_doctor(const Invocation& invocation, Console& console);

}  // namespace headrace
