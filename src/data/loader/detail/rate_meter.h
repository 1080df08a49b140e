// What a loader's stages and its consumer took for a batch, over an interval of deliveries. Values in, values out: the
// caller brings the times.
#pragma once

#include <cstdint>
#include <optional>

namespace headrace::detail {

// Of the samples that an epoch asks for, the part that a cache would hold once it is full: 0 to 1.
struct CacheFit {
  double decoded = 0;
  double encoded = 0;
};

// Means of one batch over an interval, in seconds.
struct LoaderRates {
  double consumer_busy_s = 0;  // The consumer's own time: from a delivery to the next request.
  double wait_s = 0;           // From a request to its delivery.
  double error_s = 0;          // Standard error of consumer_busy_s + wait_s.
  double service_s = 0;        // Workers' time, all of them together,
  double room_s = 0;           // and the time that they waited for room.
  double cpu_share = 1;        // The part of service_s that computes; the rest waits.
  double reading_s = 0;        // The part of service_s that reads,
  double rest_s = 0;           // and that which neither reads nor decodes.
  double read_s = 0;           // What reading would take where no sample is cached,
  double decode_s = 0;         // likewise decoding.
  CacheFit fit;

  double cycle_s() const { return consumer_busy_s + wait_s; }
};

// Totals of the workers since the loader was built.
struct WorkerTotals {
  std::int64_t samples = 0;
  std::int64_t busy_ns = 0;
  std::int64_t room_ns = 0;                 // Waiting for room.
  std::int64_t cpu_ns = 0;                  // CPU time,
  std::int64_t cpu_busy_ns = 0;             // measured over this part of busy_ns.
  std::int64_t read_ns = 0, read = 0;       // The part of busy_ns that reads, and the samples read;
  std::int64_t decode_ns = 0, decoded = 0;  // the same of decoding.
};

class RateMeter {
 public:
  // Begins an interval after `left_out` more deliveries, which were made by the setting before.
  void restart(std::int64_t left_out) noexcept {
    *this = RateMeter{};
    left_out_ = left_out;
  }
  // The time until the next delivery counts as nobody's: a pass begins.
  void pause() noexcept { last_ns_.reset(); }
  void add(std::int64_t asked_ns, std::int64_t delivered_ns, const WorkerTotals& totals) noexcept;
  // nullopt: too few deliveries yet. A batch of `batch_size` samples.
  std::optional<LoaderRates> rates(std::int64_t batch_size) const noexcept;

 private:
  std::int64_t left_out_ = 0;
  std::optional<WorkerTotals> begin_;
  WorkerTotals end_;
  std::optional<std::int64_t> last_ns_;
  std::int64_t count_ = 0;
  double consumer_busy_s_ = 0, wait_s_ = 0, squares_ = 0;
  double longest_consumer_busy_s_ = 0, its_cycle_s_ = 0;
};

}  // namespace headrace::detail
