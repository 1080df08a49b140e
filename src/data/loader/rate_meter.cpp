#include "data/loader/detail/rate_meter.h"

#include <algorithm>
#include <cmath>

namespace headrace::detail {
namespace {

// An interval is whole after this many batches that took this long together, or, where batches are slow, after fewer.
constexpr std::int64_t kBatches = 32, kSlowBatches = 8;
constexpr double kSeconds = 0.02, kSlowSeconds = 2;

double seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(std::max<std::int64_t>(to_ns - from_ns, 0)) * 1e-9;
}

// Of each sample that passed a stage in an interval, or ever, where none did in it.
double sample_s(std::int64_t ns, std::int64_t ns_before, std::int64_t samples, std::int64_t samples_before) {
  if (samples == 0) return 0;
  const bool some = samples > samples_before;
  return some ? seconds(ns_before, ns) / static_cast<double>(samples - samples_before)
              : seconds(0, ns) / static_cast<double>(samples);
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void RateMeter::add(std::int64_t asked_ns, std::int64_t delivered_ns, const WorkerTotals& totals) noexcept {
  const std::optional<std::int64_t> last_ns = last_ns_;
  last_ns_ = delivered_ns;
  if (!begin_) {
    if (left_out_-- <= 0) begin_ = totals;
    return;
  }
  if (!last_ns) return;
  const double consumer_busy_s = seconds(*last_ns, asked_ns), wait_s = seconds(asked_ns, delivered_ns);
  const double cycle_s = consumer_busy_s + wait_s;
  ++count_;
  consumer_busy_s_ += consumer_busy_s;
  wait_s_ += wait_s;
  squares_ += cycle_s * cycle_s;
  if (consumer_busy_s >= longest_consumer_busy_s_) {
    longest_consumer_busy_s_ = consumer_busy_s;
    its_cycle_s_ = cycle_s;
  }
  end_ = totals;
}

// The cycle with the longest own time is left out: a checkpoint or a look at the metrics is not the consumer's pace.
std::optional<LoaderRates> RateMeter::rates(std::int64_t batch_size) const noexcept {
  const double total_s = consumer_busy_s_ + wait_s_;
  const bool whole = (count_ >= kBatches && total_s >= kSeconds) || (count_ >= kSlowBatches && total_s >= kSlowSeconds);
  if (!whole || end_.samples == begin_->samples) return std::nullopt;
  const double rest = static_cast<double>(count_ - 1);
  LoaderRates rates;
  rates.consumer_busy_s = (consumer_busy_s_ - longest_consumer_busy_s_) / rest;
  rates.wait_s = (wait_s_ - (its_cycle_s_ - longest_consumer_busy_s_)) / rest;
  const double mean = rates.cycle_s(), mean_square = (squares_ - its_cycle_s_ * its_cycle_s_) / rest;
  rates.error_s = std::sqrt(std::max(mean_square - mean * mean, 0.0) / rest);
  const double batches = ratio(end_.samples - begin_->samples, batch_size);
  rates.service_s = static_cast<double>(end_.busy_ns - begin_->busy_ns) * 1e-9 / batches;
  rates.room_s = static_cast<double>(end_.room_ns - begin_->room_ns) * 1e-9 / batches;
  rates.reading_s = seconds(begin_->read_ns, end_.read_ns) / batches;
  rates.rest_s =
      std::max(rates.service_s - rates.reading_s - seconds(begin_->decode_ns, end_.decode_ns) / batches, 0.0);
  const auto size = static_cast<double>(batch_size);
  rates.read_s = size * sample_s(end_.read_ns, begin_->read_ns, end_.read, begin_->read);
  rates.decode_s = size * sample_s(end_.decode_ns, begin_->decode_ns, end_.decoded, begin_->decoded);
  const std::int64_t measured_ns = end_.cpu_busy_ns - begin_->cpu_busy_ns;
  if (measured_ns > 0) {
    rates.cpu_share = std::clamp(ratio(end_.cpu_ns - begin_->cpu_ns, measured_ns), 0.0, 1.0);
  } else if (end_.cpu_busy_ns > 0) {
    rates.cpu_share = std::clamp(ratio(end_.cpu_ns, end_.cpu_busy_ns), 0.0, 1.0);
  }
  return rates;
}

}  // namespace headrace::detail
