#include "core/hardware/wait_policy.h"

#include <strings.h>

#include <cstdlib>

namespace headrace {
namespace {

WaitPolicy from_environment() {
  const char* found = std::getenv("OMP_WAIT_POLICY");
  if (found != nullptr && ::strcasecmp(found, "active") == 0) return WaitPolicy::active;
  if (found != nullptr && ::strcasecmp(found, "passive") == 0) return WaitPolicy::passive;
  return WaitPolicy::system;
}

}  // namespace

Applied wait_policy_in_force(WaitPolicy requested) {
  // A count of spins takes the policy's place, whatever that says.
  const WaitPolicy found = has_spin_count() ? WaitPolicy::system : from_environment();
  Applied applied{"compute.wait_policy", std::string(choice_name(requested)), std::string(choice_name(found)), ""};
  if (found == requested) return applied;
  if (has_spin_count()) {
    applied.reason = "GOMP_SPINCOUNT is set, and libgomp takes it in place of a policy";
  } else if (requested == WaitPolicy::system) {
    applied.reason = "OMP_WAIT_POLICY was set before the process began";
  } else {
    applied.reason = "OMP_WAIT_POLICY must be set before LibTorch is loaded; it was not";
  }
  return applied;
}

bool has_spin_count() noexcept {
  return std::getenv("GOMP_SPINCOUNT") != nullptr;
}

}  // namespace headrace
