// A TraceChoice in force: which names it has, looked up without a lock by every thread that records.
#pragma once

#include <headrace/trace.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::detail {

// One of them, as matches() of core/base/wildcard.h. Of no patterns: every text.
bool matches_any(const std::vector<std::string>& patterns, std::string_view text) noexcept;

// Error{invalid_argument} naming the field: an empty pattern, every_steps below 1, a negative time.
void check_choice(const TraceChoice& choice);

// What was found of each name, by its address. find() is for any thread, put() and clear() for one at a time. A thread
// that looks while it is cleared may find what held before.
class NameVerdicts {
 public:
  // nullopt: not known, or no room was left for it.
  std::optional<bool> find(const SpanName& name) const noexcept;
  void put(const SpanName& name, bool is_chosen) noexcept;
  void clear() noexcept;

 private:
  static constexpr std::size_t kSlots = 1024;  // A power of two. A program has some tens of names.
  static constexpr std::size_t kProbes = 8;
  static std::size_t first_slot(std::uintptr_t address) noexcept;

  std::array<std::atomic<std::uintptr_t>, kSlots> slots_{};  // An address, whose lowest bit is the verdict; 0: free.
};

}  // namespace headrace::detail
