// The settings in force in a run under way: what was switched when, and what that took.
#pragma once

#include <headrace/live_tuner.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Changes are numbers below `count`.
class LiveSwitch {
 public:
  using Changes = std::vector<std::size_t>;
  using Clock = std::function<double()>;
  struct Refusal {
    ErrorCode code;
    std::string message;
  };

  LiveSwitch(LiveLoop& loop, std::size_t count, Clock clock);

  // Makes `wanted` hold from `update` on, in which `on` are on that are not kept. nullopt: it holds. On a refusal, an
  // Error of this rank's loop or of another's, and on any other exception, which passes, what held before holds still.
  std::optional<Refusal> to(const Settings& wanted, const Changes& on, std::int64_t update, std::string_view why);
  // The same without asking other ranks, for calls that come from outside; an Error passes.
  void alone_to(const Settings& wanted, std::int64_t update, std::string_view why);

  const Settings& in_force() const noexcept { return in_force_; }
  const Changes& on() const noexcept { return on_; }  // Not kept, and in force.
  const std::vector<LiveTurn>& turns() const noexcept { return turns_; }
  bool is_half_full() const noexcept;
  bool is_full() const noexcept;  // No more turns can be recorded than a search's end takes.

  void count_unit() noexcept { ++units_; }
  std::int64_t units() const noexcept { return units_; }             // Counted ones since the last switch.
  double take_seconds() noexcept;                                    // Of switches since it was asked last.
  bool were_in_force(const Settings& settings) const;                // Ever, these and no others.
  bool was_on(std::size_t change) const { return was_on_[change]; }  // Ever.
  // The shortest switch so far that had to do with the change; nullopt: none had.
  std::optional<double> switch_s(std::size_t change) const { return switch_s_[change]; }

 private:
  void note(const Changes& on_before, std::int64_t update, std::string_view why, double took_s);

  LiveLoop& loop_;
  Clock clock_;
  Settings in_force_;
  Changes on_;
  std::vector<LiveTurn> turns_;
  std::int64_t units_ = 0;
  double seconds_ = 0;
  std::vector<bool> was_on_;
  std::vector<std::optional<double>> switch_s_;
};

}  // namespace headrace
