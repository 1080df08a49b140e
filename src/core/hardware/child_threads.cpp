#include "core/hardware/child_threads.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr const char* kName = "child_threads";
constexpr std::array kVariables{"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
constexpr std::int64_t kThreadsMax = 1024;

using Values = std::array<std::optional<std::string>, kVariables.size()>;  // nullopt: not set.

Values read_all() {
  Values values;
  for (std::size_t i = 0; i < kVariables.size(); ++i) {
    if (const char* found = std::getenv(kVariables[i])) values[i] = found;
  }
  return values;
}

std::string text_of(const Values& values) {
  const auto text = [](const std::optional<std::string>& value) { return value.value_or("unset"); };
  if (std::all_of(values.begin(), values.end(), [&](const auto& value) { return value == values[0]; })) {
    return text(values[0]);
  }
  std::string all;
  for (std::size_t i = 0; i < values.size(); ++i) {
    all += fmt::format("{}{} {}", i == 0 ? "" : ", ", kVariables[i], text(values[i]));
  }
  return all;
}

// Writes all and tells what holds then.
HardwareSetting written(const Values& wanted) {
  HardwareSetting setting{.name = kName,
                          .requested = text_of(wanted),
                          .before = text_of(read_all()),
                          .now = {},
                          .how = SettingHow::for_children,
                          .reason = {}};
  for (std::size_t i = 0; i < kVariables.size(); ++i) {
    wanted[i] ? ::setenv(kVariables[i], wanted[i]->c_str(), 1) : ::unsetenv(kVariables[i]);
  }
  const Values now = read_all();
  setting.now = text_of(now);
  if (now == wanted) return setting;
  setting.how = SettingHow::not_applied;
  setting.reason = "no memory for environment variables";  // setenv() has no other error for these names.
  return setting;
}

}  // namespace

HardwareChange set_child_threads(std::int64_t threads) {
  if (threads < 1 || threads > kThreadsMax) {
    fail(ErrorCode::invalid_argument, "hardware: {}: wanted 1 to {}, found {}", kName, kThreadsMax, threads);
  }
  const Values before = read_all();
  Values wanted;
  wanted.fill(fmt::format("{}", threads));
  return {written(wanted), [before] { return written(before); }};
}

}  // namespace headrace
