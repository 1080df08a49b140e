#include "core/trace/detail/choice.h"

#include <algorithm>
#include <utility>

#include "core/base/fail.h"
#include "core/base/wildcard.h"

namespace headrace::detail {

static_assert(alignof(SpanName) > 1, "the lowest bit of a name's address is the verdict");

bool matches_any(const std::vector<std::string>& patterns, std::string_view text) noexcept {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(),
                                         [&](const std::string& pattern) { return matches(pattern, text); });
}

void check_choice(const TraceChoice& choice) {
  for (const auto& [field, patterns] : {std::pair{"names", &choice.names}, std::pair{"kept", &choice.kept}}) {
    if (std::find(patterns->begin(), patterns->end(), "") != patterns->end()) {
      fail(ErrorCode::invalid_argument, "trace: {}: wanted patterns, found an empty text", field);
    }
  }
  if (choice.every_steps < 1) {
    fail(ErrorCode::invalid_argument, "trace: every_steps is {}, wanted at least 1", choice.every_steps);
  }
  if (choice.from_ns < 0 || choice.length_ns < 0) {
    fail(ErrorCode::invalid_argument, "trace: {} is {} ns, wanted at least 0",
         choice.from_ns < 0 ? "from_ns" : "length_ns", choice.from_ns < 0 ? choice.from_ns : choice.length_ns);
  }
}

std::size_t NameVerdicts::first_slot(std::uintptr_t address) noexcept {
  return static_cast<std::size_t>((static_cast<std::uint64_t>(address) * 0x9E3779B97F4A7C15U) >> 54);
}

std::optional<bool> NameVerdicts::find(const SpanName& name) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(&name);
  const std::size_t first = first_slot(address);
  for (std::size_t probe = 0; probe < kProbes; ++probe) {
    const std::uintptr_t slot = slots_[(first + probe) % kSlots].load(std::memory_order_relaxed);
    if (slot == 0) return std::nullopt;
    if ((slot & ~std::uintptr_t{1}) == address) return (slot & 1) != 0;
  }
  return std::nullopt;
}

void NameVerdicts::put(const SpanName& name, bool is_chosen) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(&name);
  const std::size_t first = first_slot(address);
  for (std::size_t probe = 0; probe < kProbes; ++probe) {
    std::atomic<std::uintptr_t>& slot = slots_[(first + probe) % kSlots];
    const std::uintptr_t found = slot.load(std::memory_order_relaxed);
    if (found != 0 && (found & ~std::uintptr_t{1}) != address) continue;
    return slot.store(address | (is_chosen ? 1U : 0U), std::memory_order_relaxed);
  }
}

void NameVerdicts::clear() noexcept {
  for (auto& slot : slots_) slot.store(0, std::memory_order_relaxed);
}

}  // namespace headrace::detail
