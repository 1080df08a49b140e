// How far a run is behind the loop as written, and how far it may be.
#pragma once

#include <optional>

namespace headrace {

// At no update the run may be further behind than `lost_s` plus `lost_share` of the seconds that the loop as written
// takes for the whole run, or took so far where its length is unknown.
class LiveBudget {
 public:
  LiveBudget(double lost_s, double lost_share) : lost_s_(lost_s), lost_share_(lost_share) {}

  // A unit, of whose seconds the loop as written would not have taken so many; negative: it would have taken more.
  void add(double unit_s, double excess_s) noexcept;
  // What the loop as written takes for the rest of the run; nullopt: unknown. Holds until it is told again.
  void expect_rest(std::optional<double> rest_s) noexcept;

  double elapsed_s() const noexcept { return elapsed_s_; }
  double behind_s() const noexcept { return behind_s_; }
  double most_behind_s() const noexcept { return most_behind_s_; }
  double allowed_s() const noexcept;
  // Whether something may begin that is expected to put the run so many seconds further behind.
  bool has_room(double cost_s) const noexcept { return behind_s_ + cost_s <= allowed_s(); }
  // Whether more is allowed the longer the run goes on as written.
  bool grows() const noexcept { return !whole_s_ && lost_share_ > 0; }

 private:
  double lost_s_, lost_share_;
  double elapsed_s_ = 0, behind_s_ = 0, most_behind_s_ = 0;
  std::optional<double> whole_s_;  // Of the loop as written, from first to last update.
};

}  // namespace headrace
