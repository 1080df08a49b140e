#include "core/hardware/wait_policy.h"

#include <strings.h>

#include <cstdlib>

namespace headrace {

WaitPolicy wait_policy_of_environment() noexcept {
  if (has_spin_count()) return WaitPolicy::system;  // It takes the policy's place, whatever that says.
  const char* found = std::getenv("OMP_WAIT_POLICY");
  if (found != nullptr && ::strcasecmp(found, "active") == 0) return WaitPolicy::active;
  if (found != nullptr && ::strcasecmp(found, "passive") == 0) return WaitPolicy::passive;
  return WaitPolicy::system;
}

Applied wait_policy_in_force(WaitPolicy requested) {
  const std::string name(choice_name(requested));
  Applied applied{"compute.wait_policy", name, name, ""};
  const WaitPolicy found = wait_policy_of_environment();
  if (requested == WaitPolicy::system || found == requested) return applied;
  applied.applied = choice_name(found);
  applied.reason = has_spin_count() ? "GOMP_SPINCOUNT is set, and libgomp takes it in place of a policy"
                                    : "OMP_WAIT_POLICY must be set before LibTorch is loaded; it was not";
  return applied;
}

bool has_spin_count() noexcept {
  return std::getenv("GOMP_SPINCOUNT") != nullptr;
}

}  // namespace headrace
