// What to try against each resource that runs out, with the settings to change.
#pragma once

#include <headrace/resource_verdict.h>

#include <string>
#include <vector>

namespace headrace::detail {

struct ResourceAdvice {
  std::string sentence;
  std::vector<std::string> keys;
};
ResourceAdvice advice_on(Resource resource);

}  // namespace headrace::detail
