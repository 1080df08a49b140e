#include <headrace/strategy.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "app/knobs/strategy_name.h"
#include "core/base/fail.h"

namespace headrace {
namespace {

struct Registry {
  std::mutex mutex;  // Guards the two lists, which are as long as each other.
  std::vector<std::string> names;
  std::vector<std::shared_ptr<Strategy>> strategies;
};

Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

void register_strategy(std::shared_ptr<Strategy> strategy) {
  if (strategy == nullptr) fail(ErrorCode::invalid_argument, "strategy: wanted a strategy, found null");
  const std::string name(strategy->name()), sentence = strategy->sentence();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  check_strategy(name, sentence, all.names);
  all.names.push_back(name);
  all.strategies.push_back(std::move(strategy));
}

void unregister_strategy(std::string_view name) {
  Registry& all = registry();
  std::shared_ptr<Strategy> last;  // Goes behind the lock: its destructor is somebody else's code.
  const std::lock_guard lock(all.mutex);
  const auto found = std::find(all.names.begin(), all.names.end(), name);
  if (found == all.names.end()) fail(ErrorCode::not_found, "strategy: none is registered as \"{}\"", name);
  const auto strategy = all.strategies.begin() + (found - all.names.begin());
  last = std::move(*strategy);
  all.strategies.erase(strategy);
  all.names.erase(found);
}

std::vector<std::shared_ptr<Strategy>> registered_strategies() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.strategies;
}

}  // namespace headrace
