// Two neighbouring blocks of updates under different settings, while they are measured.
#pragma once

#include <headrace/live_loop.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace headrace {

// Share of a loop's time in which it waits for data. Below it, what a queue holds does not matter.
inline constexpr double kWaitShare = 0.03;

// Units of a block, in this order.
struct BlockUnits {
  std::int64_t wash_out = 0;  // Not measured: caches, threads and queues become those of the block's settings.
  std::int64_t measured = 1;
  std::int64_t gap = 0;      // Not measured.
  std::int64_t settled = 0;  // Measured apart: nothing of the settings before is left in them.

  std::int64_t units() const noexcept { return wash_out + measured + gap + settled; }
};

// Takes units one after the other. A unit that does not count belongs to its block but moves it no further: the block
// goes on with the next one. Which settings a block has is its owner's concern. No allocation.
class LivePair {
 public:
  enum class Block : std::size_t { first, second };

  // The second block is planned as the first one until it begins.
  explicit LivePair(const BlockUnits& first) : blocks_{Measured{first}, Measured{first}} {}

  // `expected_s`: what the loop as written takes for the unit's work.
  void add(const LiveUnit& unit, double expected_s) noexcept;
  Block at_hand() const noexcept { return at_hand_; }
  std::int64_t units() const noexcept;  // Of both blocks, as planned.
  bool is_whole() const noexcept;       // The block at hand. It may take more units, which are measured too.
  // So many of its units do not count that the two blocks would no longer be neighbours.
  bool is_scattered() const noexcept;
  // The block at hand has had those of its units that are not measured, or so many of them, and no more.
  bool is_washed_out(std::int64_t units) const noexcept;
  bool is_half_measured() const noexcept;  // At least.
  // Of the block at hand so far: its measured time, relative to what its work lets expect.
  double ratio() const noexcept { return ratio(at_hand_); }
  double ratio(Block block) const noexcept { return of(block).measured.ratio(); }
  std::int64_t planned() const noexcept { return of(at_hand_).planned.measured; }  // To be measured in that block.
  void begin_second(const BlockUnits& units) noexcept;

  // Of whole blocks. Each time is relative to what the block's work lets expect.
  double log_ratio() const noexcept;                               // log(first block's time / second's).
  std::optional<double> log_settling(Block block) const noexcept;  // log(measured / settled), where it has both.
  double unit_s(Block block) const noexcept;                       // Mean of the measured units, as measured.

  double seconds(Block block) const noexcept { return of(block).measured.seconds; }  // Of its measured units.
  double wait_s(Block block) const noexcept { return of(block).measured.wait_s; }  // Of these, waiting for the loader.

 private:
  struct Sum {
    std::int64_t units = 0;
    double seconds = 0, expected_s = 0, wait_s = 0;
    void add(const LiveUnit& unit, double expected) noexcept;
    double ratio() const noexcept { return seconds / expected_s; }
  };
  struct Measured {
    BlockUnits planned;
    std::int64_t washed_out = 0, passed_over = 0, uncounted = 0;
    Sum measured{}, settled{};
  };
  const Measured& of(Block block) const noexcept { return blocks_[static_cast<std::size_t>(block)]; }
  Measured& of(Block block) noexcept { return blocks_[static_cast<std::size_t>(block)]; }

  std::array<Measured, 2> blocks_;
  Block at_hand_ = Block::first;
};

}  // namespace headrace
