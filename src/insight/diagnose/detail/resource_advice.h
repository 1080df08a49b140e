// What to try against each resource that runs out, with the settings to change, and how to make sure of it first.
#pragma once

#include <headrace/resource_verdict.h>

#include <string>
#include <vector>

namespace headrace::detail {

struct ResourceAdvice {
  std::string sentence;
  std::vector<std::string> keys;
};
// `loads_ahead`: false of a stage of loading that the training thread goes through by itself.
ResourceAdvice advice_on(Resource resource, bool loads_ahead);

// Of a verdict that no differential run has confirmed.
std::string how_to_confirm(const ResourceVerdict& verdict, const ResourceFigures& figures);

}  // namespace headrace::detail
