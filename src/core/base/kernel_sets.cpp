#include "core/base/kernel_sets.h"

#include <hwy/highway.h>

#include <cstdint>

namespace headrace {
namespace {

bool is_plain(std::int64_t target) {
  return target == HWY_SCALAR || target == HWY_EMU128;
}

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> found;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (!is_plain(target)) found.push_back(target);
  }
  found.push_back(HWY_STATIC_TARGET);
  return found;
}

std::string name_of(std::int64_t target) {
  return is_plain(target) ? "plain" : hwy::TargetName(target);
}

}  // namespace

std::vector<std::string> kernel_sets() {
  std::vector<std::string> names;
  for (const std::int64_t target : targets()) names.push_back(name_of(target));
  return names;
}

void use_kernel_set(const std::string& name) noexcept {
  hwy::GetChosenTarget().DeInit();
  for (const std::int64_t target : targets()) {
    if (name_of(target) == name) hwy::GetChosenTarget().Update(target);
  }
}

}  // namespace headrace
