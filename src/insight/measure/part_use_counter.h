// What the training thread uses in the parts of its steps, counted as it is told where each begins.
#pragma once

#include <headrace/resource_verdict.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/hardware/thread_usage.h"

namespace headrace {

// For the thread that builds it. A step that is counted costs some three microseconds a part; where steps are short,
// only as many are counted as keeps that below kCostMax of the time. The first kFirst are.
class PartUseCounter {
 public:
  enum class Part : std::uint8_t { data_wait, transfer, forward, backward, optimizer, other };
  static constexpr double kCostMax = 0.003;
  static constexpr std::int64_t kFirst = 8;

  void begin(Part part);  // Here the one before ends.
  void pause();           // What comes belongs to no part, until the next begins.
  // The step is over, and what is open with it. False: it was none of training, and nothing of it counts.
  void end_step(bool counts);
  // The last one, to the beginning of what is open: that is the script's and no longer the step's.
  void end_last_step(bool counts);

  // Of `steps` steps, as those that were counted are; nullopt: none was.
  std::optional<PartUses> uses(std::int64_t steps) const;
  std::int64_t counted() const { return counted_; }
  bool knows_run_delay() const { return knows_run_delay_; }

 private:
  static constexpr std::size_t kParts = 6;
  using Uses = std::array<PartUse, kParts>;

  void close();
  void settle(bool counts);

  ThreadUsageReader reader_;
  bool knows_run_delay_ = reader_.has_run_delay();
  bool counting_ = true;  // This step.
  std::optional<Part> open_;
  std::int64_t opened_ns_ = 0;
  ThreadUsage opened_{};
  Uses step_{}, sum_{};
  std::int64_t counted_ = 0;
  std::int64_t cost_ns_ = 0;  // Of reading, in this step.
  std::int64_t next_ns_ = 0;  // When the next step may be counted.
};

}  // namespace headrace
