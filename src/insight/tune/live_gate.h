// The numerics of a change, before it is first in force, and of a proof's settings: a kept call replayed under them.
#pragma once

#include <headrace/live_loop.h>
#include <headrace/tune.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "insight/tune/numeric_pairs.h"
#include "insight/tune/pair_record.h"

namespace headrace {

// bit_equal: every bit of outputs, gradients and update. rounding: gradients within 1e-2 relative L2 together and 0.1
// each, outputs within 1e-5, the update within 1e-6. reduced_precision: judge_reduced_precision() of numeric_check.h,
// with a distance of 0 where none is known. Reports the figure that is largest against its tolerance; what is not
// finite passes nothing.
NumericResult judge_replay(NumericClass numeric_class, const ReplayDistance& distance,
                           std::optional<double> distance_between_calls);

// Which replay is next, and what it says. Of one kept call, a change costs one forward and backward and all of them
// together one of the reference; a second one where a bit_equal change is refused, to know whether the loop repeats its
// own bits.
class LiveGate {
 public:
  struct Finding {
    std::optional<NumericResult> numerics;  // nullopt: `failure` says why.
    ReplayFailure failure{};
  };

  explicit LiveGate(LiveLoop& loop) : loop_(loop) {}

  void expect(std::size_t change, const std::vector<NumericPair>& pairs);  // Behind those before it.
  // Before all others, in the place of what it waited for.
  void expect_first(std::size_t change, const std::vector<NumericPair>& pairs);
  bool is_waiting(std::size_t change) const;
  void forget(std::size_t change);  // It waits no longer.

  std::optional<std::size_t> next() const;
  const NumericPair& next_pair() const { return waiting_.front().pair; }  // Of next(), which there must be.
  // Whether the call at hand can tell of the next one: reduced_precision is judged by how far two calls are apart.
  bool is_ready();
  // In before_update(), where a call was kept. The pair stays next in turn.
  Finding replay_next();
  void pass_next();  // It waits no longer, and has_passed() from now on.
  bool has_passed(const NumericPair& pair) const;

 private:
  struct Waiting {
    std::size_t change;
    NumericPair pair;
  };
  NumericResult judge(const NumericPair& pair, const ReplayDistance& distance);

  LiveLoop& loop_;
  std::deque<Waiting> waiting_;
  std::vector<NumericPair> passed_;
  std::optional<bool> repeats_itself_;
};

// Whether the call at hand can be replayed as the loop made it: if not, a replay that failed tells of no change. One
// forward and backward; nothing where the loop knows that it cannot.
bool can_replay_call(LiveLoop& loop);

// How long a kept call takes under a change that `allow` forbids: replays in pairs, under it and as written, in drawn
// order, their results thrown away. The first pair pays for what later ones find ready and is not counted; it tells of
// the numerics, unless these take two calls: then the first pair that has them does.
class ReplayTimes {
 public:
  static constexpr std::int64_t kPairs = 4;

  ReplayTimes(LiveLoop& loop, NumericClass numeric_class, Settings changes, double gain_min, std::uint64_t seed);

  // In before_update(), where a call was kept: two forwards and backwards of the loop as written, one under the change.
  std::optional<ReplayFailure> replay_pair(std::int64_t number);
  bool is_done() const { return record_.pairs() >= kPairs; }
  const PairRecord& record() const noexcept { return record_; }
  const NumericResult& numerics() const noexcept { return numerics_; }  // Unchecked where two calls would be needed.

 private:
  LiveLoop& loop_;
  NumericClass numeric_class_;
  Settings changes_;
  std::uint64_t seed_;
  PairRecord record_;
  NumericResult numerics_;
  bool is_first_ = true;
};

}  // namespace headrace
