#include "app/cli/doctor.h"

#include <fmt/format.h>
#include <headrace/report.h>

#include <nlohmann/json.hpp>

#include "app/cli/environment.h"
#include "app/cli/torch_library.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

void look_at_torch(std::vector<Finding>& findings) {
  if (const auto fault = torch_library_fault()) {
    findings.push_back({"no_torch", *fault, "Without it train, eval, profile and tune do not run."});
  }
}

std::string bytes_text(const std::optional<std::int64_t>& bytes) {
  return bytes ? fmt::format("{:.2f} GiB", static_cast<double>(*bytes) / (1LL << 30)) : "unavailable";
}

std::string row_text(const std::string& name, const std::string& value) {
  return fmt::format("{:<18} {}\n", name, value);
}

std::string machine_text(const Machine& machine) {
  std::string sets;
  for (const std::string& set : machine.instruction_sets) sets += (sets.empty() ? "" : " ") + set;
  std::string text;
  const auto row = [&text](const char* name, const std::string& value) { text += row_text(name, value); };
  row("CPU", machine.cpu);
  row("Cores", fmt::format("{} usable of {}", machine.cores_usable, machine.cores_online));
  row("Instruction sets", sets.empty() ? "unavailable" : sets);
  row("Last-level cache", bytes_text(machine.last_level_cache));
  row("NUMA nodes", std::to_string(machine.numa_nodes));
  row("Memory", bytes_text(machine.memory_total));
  row("Memory limit", fmt::format("{} ({})", bytes_text(machine.memory_limit), machine.memory_limit_from));
  row("GPU", machine.gpu);
  row("System", machine.system);
  return text;
}

Json proposals_json(const std::vector<Proposal>& proposals) {
  Json list = Json::array();
  for (const Proposal& proposal : proposals) {
    list.push_back({{"setting", proposal.setting},
                    {"applied", proposal.applied},
                    {"reason", proposal.reason},
                    {"predicted_samples_per_second", *proposal.predicted_samples_per_second}});
  }
  return list;
}

std::string findings_text(const std::vector<Finding>& findings) {
  if (findings.empty()) return "Nothing found.\n";
  std::string text = fmt::format("{} {}:\n", findings.size(), findings.size() == 1 ? "finding" : "findings");
  for (const Finding& finding : findings) {
    text += fmt::format("  {}: {}\n      {}\n", finding.code, finding.sentence, finding.advice);
  }
  return text;
}

}  // namespace

int run_doctor(const Invocation& invocation, Console& console) {
  Json document{{"format", "headrace-doctor"}, {"version", 1}};
  std::vector<Finding> findings;
  std::string text;
  if (invocation.recipe.empty()) {
    const Machine machine = detect_machine();
    findings = machine_findings(machine);
    look_at_torch(findings);
    text = machine_text(machine) + "\n";
    document["machine"] = to_json(machine);
    document["variables"] = Json::object();
    for (const auto& [name, value] : job_variables()) document["variables"][name] = without_credentials(value);
  } else {
    RunReport report = check_run(invocation.recipe, detect_machine());
    findings = std::move(report.findings);
    document["run"] = invocation.recipe.string();
    document["facts"] = Json::object();
    for (const auto& [name, value] : report.facts) {
      document["facts"][name] = value;
      text += row_text(name, value);
    }
    text += "\n";
    document["proposals"] = proposals_json(report.proposals);
    document.update(report.figures);
  }
  document["findings"] = to_json(findings);
  console.result(text + findings_text(findings));
  console.json(document);
  return findings.empty() ? kExitDone : kExitVerdict;
}

}  // namespace headrace
