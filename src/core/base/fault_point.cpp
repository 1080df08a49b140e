#include "core/base/fault_point.h"

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr const char* kVariable = "HEADRACE_FAULT";

struct Fault {
  std::string name;
  std::int64_t passage = 0;  // From 1.
  int signal = SIGKILL;      // 0: throws instead.
};

// Cuts the action off the end of `text`; without one the order is to kill.
int take_signal(std::string_view& text) {
  constexpr std::pair<std::string_view, int> kActions[] = {{":error", 0}, {":sigint", SIGINT}, {":sigterm", SIGTERM}};
  for (const auto& [suffix, signal] : kActions) {
    if (!text.ends_with(suffix)) continue;
    text.remove_suffix(suffix.size());
    return signal;
  }
  return SIGKILL;
}

Fault parse_fault(std::string_view text) {
  Fault fault;
  const std::size_t colon = text.find(':');
  fault.name = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  fault.signal = take_signal(rest);
  const char* end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data(), end, fault.passage);
  if (fault.name.empty() || error != std::errc{} || stop != end || fault.passage < 1) {
    fail(ErrorCode::invalid_argument,
         "base: {}: wanted NAME:N, NAME:N:error, NAME:N:sigint or NAME:N:sigterm with N from 1, found {}", kVariable,
         text);
  }
  return fault;
}

const Fault& ordered_fault() {
  const char* text = std::getenv(kVariable);
  static const Fault fault = parse_fault(text == nullptr ? "" : text);
  return fault;
}

// Read before main, so that a passage without a fault is one load.
std::atomic<bool> armed{std::getenv(kVariable) != nullptr};
std::atomic<std::int64_t> passages{0};

}  // namespace

void fault_point(const char* name) {
  if (!armed.load(std::memory_order_relaxed)) return;
  const Fault& fault = ordered_fault();
  if (fault.name != name || passages.fetch_add(1) + 1 != fault.passage) return;
  if (fault.signal == 0) fail(ErrorCode::io, "base: {} was ordered to fail here by {}", name, kVariable);
  std::raise(fault.signal);
}

}  // namespace headrace
