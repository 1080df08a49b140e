#include "app/knobs/strategy_library.h"

#include <dlfcn.h>
#include <headrace/strategy.h>

#include <filesystem>

#include "core/base/fail.h"

namespace headrace {

void load_strategies(const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    const std::string path = std::filesystem::absolute(library).string();  // A bare name would be looked for elsewhere.
    void* const opened = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) fail(ErrorCode::unsupported, "strategy: tune.strategies: {}", ::dlerror());
    void* const found = ::dlsym(opened, "headrace_register_strategies");
    if (found == nullptr) {
      fail(ErrorCode::unsupported, "strategy: tune.strategies: wanted headrace_register_strategies() in {}, found none",
           path);
    }
    reinterpret_cast<decltype(&headrace_register_strategies)>(found)();
  }
}

}  // namespace headrace
