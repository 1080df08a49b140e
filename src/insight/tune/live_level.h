// Whether what a unit takes has changed for good: other work, or other programs on the machine.
#pragma once

#include <cstddef>
#include <vector>

namespace headrace {

// The middles of windows of kUnits units, one behind the other: a burst moves none of them. Memory is bounded.
class LiveLevel {
 public:
  static constexpr std::size_t kUnits = 50;  // And as many as a second holds, where units are short.
  static constexpr double kFactor = 1.5;

  LiveLevel();
  // Of a unit of the loop as written, or what one would have taken. Whether it ends a window whose middle lies beyond
  // kFactor times, or below 1 / kFactor of, that of the first one since this was last so.
  bool add(double seconds);

 private:
  std::vector<double> window_;
  double window_s_ = 0;
  double level_s_ = 0;  // 0: no window has ended.
};

}  // namespace headrace
