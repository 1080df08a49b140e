#include "insight/tune/pair_record.h"

#include "insight/tune/comparison.h"
#include "insight/tune/statistics.h"

namespace headrace {

void PairRecord::add(double log_ratio) {
  const auto position = static_cast<std::size_t>(bets_.pairs()) % kNewest;
  bets_.add(log_ratio);
  if (newest_.size() < kNewest) {
    newest_.push_back(log_ratio);
  } else {
    newest_[position] = log_ratio;
  }
}

std::optional<double> PairRecord::middle() const {
  if (newest_.empty()) return std::nullopt;
  return median(newest_);
}

std::optional<Interval> PairRecord::gain() const {
  if (newest_.empty()) return std::nullopt;
  return to_gain(estimate_middle(newest_, kTailError, kTailError));
}

std::string PairRecord::text() const {
  const auto found = gain();
  return found ? gain_text(*found, pairs()) : "no pair was measured";
}

}  // namespace headrace
