// What a unit of the loop as written takes, by the work in it.
//
// seconds = a + b * work + w. b is the median of the slopes between any two of the newest units (Theil 1950, Sen 1968),
// a the median of what the very newest leave over: a burst moves neither, and a machine that becomes slower is followed
// within a dozen units. Where work does not vary, b is 0. w is the mean of what units wait for data: worker processes
// hand out several batches at a time, so that where a loop waits, most units wait for nothing and a few for all.
#pragma once

#include <headrace/live_loop.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

// The first units of a run pay for what later ones find ready.
inline constexpr std::int64_t kFirstUnits = 2;

// Whether a unit tells of time: its loop says so, and its numbers can be a time and an amount of work.
bool is_counted(const LiveUnit& unit) noexcept;

// Memory is bounded. A unit costs some 100 ns, and 10 us where work varies.
class UnitTimes {
 public:
  UnitTimes();
  // A counted unit of the loop as written, or what one would have taken.
  // `wait_s`: of `seconds`, waiting for data.
  void add(double seconds, double work, double wait_s = 0);
  bool is_known() const noexcept { return count_ > 0; }
  // What it says now; it does not change with units that are added later.
  struct Line {
    double slope = 0, level = 0, least = 0, wait_s = 0;
    double expected(double work) const noexcept;  // Above 0; of work that is far from that of the units a guess.
  };
  Line line() const;  // At least one unit must have been added.
  double expected(double work) const { return line().expected(work); }
  // Seconds of a unit with the work of the middle; 0: none was added.
  double typical() const { return typical_ + wait_s_; }
  double wait_s() const noexcept { return wait_s_; }  // Of these.

 private:
  static constexpr std::size_t kWindow = 48;  // Units that the slope is of.
  static constexpr std::size_t kNewest = 12;  // And the level.
  struct Point {
    double seconds = 0, work = 1;
  };
  void fit();
  double slope();
  Point& newest(std::size_t back) { return points_[(count_ - 1 - back) % kWindow]; }

  std::array<Point, kWindow> points_{};  // A ring: unit i is at i % kWindow.
  std::size_t count_ = 0;
  std::vector<double> slopes_;                  // Of fit(), so that it allocates once.
  double slope_ = 0, level_ = 0, typical_ = 0;  // Without waiting.
  double wait_s_ = 0;
};

// The units before anything is tried: how long they are, and whether blocks of them are alike.
class LiveBaseline {
 public:
  LiveBaseline();
  // Any; what does not count is left out, as are the first kFirstUnits. Whether it was taken.
  bool add(const LiveUnit& unit);
  // Of blocks that can be judged: 20, or 8 once they took 5 s.
  bool is_enough() const noexcept;
  double wait_share() const noexcept;  // Of their seconds, waiting for the loader.
  // Seconds of blocks of so many units, in a row, each unit as long as if it had typical work, and with `even_waiting`
  // as if it waited as long for data as others.
  std::vector<double> blocks(const UnitTimes& times, std::int64_t units, bool even_waiting = false) const;

 private:
  struct Unit {
    double seconds, work, wait_s;
  };
  std::vector<Unit> units_;
  std::int64_t left_out_ = 0;  // Of the first.
  double total_s_ = 0, wait_s_ = 0;
};

// A block is at least so long, or the scheduler is timed.
inline constexpr double kLiveBlockSeconds = 0.02;

}  // namespace headrace
