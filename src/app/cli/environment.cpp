#include "app/cli/environment.h"

#include <fmt/format.h>
#include <headrace/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "app/cli/torch_folder.h"
#include "core/base/build_info.h"

namespace headrace {
namespace {

struct DebugVariable {
  std::string_view name;
  std::string_view on;  // The value that switches it on; empty: any but "" and "0".
  std::string_view effect;
};

constexpr std::array kDebugVariables{
    DebugVariable{"CUDA_LAUNCH_BLOCKING", "", "each kernel on a GPU is waited for"},
    DebugVariable{"PYTORCH_NO_CUDA_MEMORY_CACHING", "", "memory on a GPU is allocated and freed for each tensor"},
    DebugVariable{"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "each collective is checked between the ranks first"},
    DebugVariable{"PYTHONTRACEMALLOC", "", "Python records where each object was made"},
    DebugVariable{"PYTHONDEVMODE", "", "Python checks what it does as it runs"},
    DebugVariable{"PYTHONMALLOC", "debug", "Python checks its memory at each call"},
};

}  // namespace

std::string_view debug_effect(std::string_view name, std::string_view value) {
  for (const DebugVariable& variable : kDebugVariables) {
    if (variable.name != name) continue;
    const bool is_on = variable.on.empty() ? !value.empty() && value != "0" : value == variable.on;
    return is_on ? variable.effect : std::string_view{};
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> job_variables() {
  static constexpr std::array<std::string_view, 6> prefixes{"OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_"};
  static constexpr std::array<std::string_view, 4> names{"GLIBC_TUNABLES", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES",
                                                         kTorchVariable};
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    const bool wanted = std::find(names.begin(), names.end(), name) != names.end() ||
                        !debug_effect(name, text.substr(equals + 1)).empty() ||
                        std::any_of(prefixes.begin(), prefixes.end(), [name](std::string_view prefix) {
                          return name.substr(0, prefix.size()) == prefix;
                        });
    if (wanted) variables.emplace_back(name, text.substr(equals + 1));
  }
  std::sort(variables.begin(), variables.end());
  return variables;
}

std::vector<std::pair<std::string, std::string>> report_environment(const Machine& machine,
                                                                    const std::string& libtorch_version) {
  std::string sets;
  for (const std::string& set : machine.instruction_sets) sets += (sets.empty() ? "" : " ") + set;
  const auto bytes = [](const std::optional<std::int64_t>& value) {
    return value ? fmt::format("{:.1f} GiB", static_cast<double>(*value) / (1LL << 30)) : std::string("unavailable");
  };
  const BuildInfo& build = build_info();
  return {{"Headrace", fmt::format("{} ({}), {}", build.version, build.commit, build.compiler)},
          {"LibTorch", libtorch_version},
          {"CPU", machine.cpu},
          {"Cores", fmt::format("{} usable of {}", machine.cores_usable, machine.cores_online)},
          {"Instruction sets", sets.empty() ? "unavailable" : sets},
          {"Memory limit", fmt::format("{} ({})", bytes(machine.memory_limit), machine.memory_limit_from)},
          {"GPU", machine.gpu},
          {"System", machine.system}};
}

}  // namespace headrace
