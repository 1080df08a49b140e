// The verb doctor: what is wrong with this machine, or with the files of a run.
#pragma once

#include <headrace/diagnosis.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/console.h"
#include "app/cli/invocation.h"
#include "core/hardware/machine.h"

namespace headrace {

// What makes measuring or training worse here. `root` is prefixed to /proc and /sys, for tests on a fake tree.
std::vector<Finding> machine_findings(const Machine& machine, const std::string& root = "");

struct RunReport {
  std::vector<std::pair<std::string, std::string>> facts;  // Verb, end, accuracy, ...: name and value.
  std::vector<Finding> findings;
};
// What is missing, cut short or damaged in a run's folder, and what its files tell (app/cli/run_contents.h) to somebody
// on the machine `here`. Changes nothing. Error{not_found}: no such folder.
RunReport check_run(const std::filesystem::path& folder, const Machine& here);

// Exit code 3 when there is a finding.
int run_doctor(const Invocation& invocation, Console& console);

}  // namespace headrace
