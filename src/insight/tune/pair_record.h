// What the pairs of one change have said so far.
#pragma once

#include <headrace/ledger.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "insight/tune/bets.h"

namespace headrace {

// The bets are on every pair; the gain and its interval are of the newest kNewest, so that memory is bounded.
class PairRecord {
 public:
  static constexpr std::size_t kNewest = 256;

  explicit PairRecord(double gain_min) : bets_(gain_min) {}

  void add(double log_ratio);  // log(time without the change / time with it).
  const Bets& bets() const noexcept { return bets_; }
  std::int64_t pairs() const { return bets_.pairs(); }
  std::optional<double> middle() const;  // Of the log ratios; nullopt without pairs.
  // With a 95 % interval, which is printed and decides nothing. Quadratic in the number of pairs: 5 ms for 256.
  std::optional<Interval> gain() const;
  std::string text() const;  // "+3.1 % (95 %: -0.4 % to +6.8 %, 11 pairs)".

 private:
  Bets bets_;
  std::vector<double> newest_;  // A ring once it is full.
};

}  // namespace headrace
