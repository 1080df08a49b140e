#include "app/cli/doctor.h"

#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/report.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "app/cli/environment.h"
#include "app/cli/torch_folder.h"
#include "app/cli/torch_library.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMemoryWanted = 2LL << 30;  // Below, LibTorch and the Fashion-MNIST example hardly fit.

// The first line of a file of /proc or /sys, or empty: the system has no such file.
std::string system_line(const std::string& path) {
  try {
    const std::string text = read_file(path, 1 << 16);
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "";
  }
}

void look_at_cores(const Machine& machine, std::vector<Finding>& findings) {
  if (machine.cores_usable >= machine.cores_online) return;
  const std::string why = machine.cpu_quota ? fmt::format("the cgroup grants {:.2f} cores", *machine.cpu_quota)
                                            : std::string("the process may not run on the others");
  findings.push_back({"few_cores",
                      fmt::format("{} of {} cores are usable: {}", machine.cores_usable, machine.cores_online, why),
                      "Raise the quota or the affinity mask if the job may use the whole machine."});
}

void look_at_memory(const Machine& machine, std::vector<Finding>& findings) {
  if (!machine.memory_limit || *machine.memory_limit >= kMemoryWanted) return;
  findings.push_back({"low_memory",
                      fmt::format("{:.2f} GiB of memory may be used ({})",
                                  static_cast<double>(*machine.memory_limit) / (1LL << 30), machine.memory_limit_from),
                      "Raise the limit to 2 GiB or more, or lower data.batch_size."});
}

void look_at_huge_pages(const std::string& root, std::vector<Finding>& findings) {
  const std::string setting = system_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  if (setting.find("[never]") == std::string::npos) return;
  findings.push_back({"no_huge_pages", "transparent huge pages are off (" + setting + ")",
                      "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled lets large tensors use them."});
}

void look_at_governor(const std::string& root, std::vector<Finding>& findings) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu0/cpufreq/";
  const std::string governor = system_line(folder + "scaling_governor"),
                    driver = system_line(folder + "scaling_driver");
  // The pstate drivers call their ordinary, fast-reacting mode powersave.
  if (governor != "powersave" || driver.find("pstate") != std::string::npos) return;
  findings.push_back({"slow_clock", "the CPU's frequency governor is powersave (" + driver + ")",
                      "cpupower frequency-set -g performance makes the job faster and its timings steadier."});
}

void look_at_load(const Machine& machine, const std::string& root, std::vector<Finding>& findings) {
  const std::string line = system_line(root + "/proc/loadavg");
  double load = 0;
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), load);
  // The load is the machine's, also in a container that may use few of its cores.
  if (error != std::errc{} || load <= machine.cores_online - 0.5 * machine.cores_usable) return;
  findings.push_back(
      {"busy",
       fmt::format("other work keeps {:.1f} of {} cores busy (load of the last minute)", load, machine.cores_online),
       "Timings scatter beside it: tune when the machine is idle."});
}

void look_at_variables(std::vector<Finding>& findings) {
  for (const auto& [name, value] : job_variables()) {
    if (name == kTorchVariable) continue;  // An installed copy wants it; look_at_torch() says what is wrong with it.
    findings.push_back({"variable_set", fmt::format("{}={} is set from outside", name, without_credentials(value)),
                        "It changes how the job runs and is in no recipe; unset it unless it is meant."});
  }
}

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

std::string findings_text(const std::vector<Finding>& findings) {
  if (findings.empty()) return "Nothing found.\n";
  std::string text = fmt::format("{} {}:\n", findings.size(), findings.size() == 1 ? "finding" : "findings");
  for (const Finding& finding : findings) text += fmt::format("  {}\n      {}\n", finding.sentence, finding.advice);
  return text;
}

}  // namespace

std::vector<Finding> machine_findings(const Machine& machine, const std::string& root) {
  std::vector<Finding> findings;
  look_at_cores(machine, findings);
  look_at_memory(machine, findings);
  look_at_huge_pages(root, findings);
  look_at_governor(root, findings);
  look_at_load(machine, root, findings);
  look_at_variables(findings);
  return findings;
}

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
  }
  document["findings"] = Json::array();
  for (const Finding& finding : findings) {
    document["findings"].push_back(
        {{"code", finding.code}, {"sentence", finding.sentence}, {"advice", finding.advice}});
  }
  console.result(text + findings_text(findings));
  console.json(document);
  return findings.empty() ? kExitDone : kExitVerdict;
}

}  // namespace headrace
