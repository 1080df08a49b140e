// A loop in virtual time and the live tuner that watches it, for tests.
#pragma once

#include <gtest/gtest.h>
#include <headrace/live_tuner.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "insight/tune/fake_live_loop.h"

namespace headrace {

using Effects = std::map<std::string, LiveEffect>;

inline Candidate candidate(const std::string& name, NumericClass numerics = NumericClass::rounding) {
  Candidate value;
  value.name = value.key = name;
  value.changes = {{name, "true"}};
  value.numerics = numerics;
  return value;
}

inline std::vector<Candidate> all_of(const Effects& effects) {
  std::vector<Candidate> candidates;
  for (const auto& [name, effect] : effects) candidates.push_back(candidate(name));
  return candidates;
}

// Both on the loop's clock.
struct TunedRun {
  FakeLiveLoop loop;
  LiveTuner tuner;

  // Without candidates, all effects in the order of their names are.
  TunedRun(const LiveMachine& machine, const Effects& effects, const LiveOptions& options = {}, std::uint64_t seed = 1,
           const std::vector<Candidate>& candidates = {})
      : loop(machine, effects, 100 + seed),
        tuner(loop, candidates.empty() ? all_of(effects) : candidates, options, seed, loop.progress(),
              [this] { return loop.now_s; }) {}

  bool until_over(std::int64_t updates_max) { return loop.run(tuner, updates_max); }
  void steps(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) loop.step(tuner);
  }
  // Until a change that is not kept is in force.
  void until_on_trial() {
    for (int i = 0; i < 200 && loop.settings.empty(); ++i) loop.step(tuner);
    ASSERT_FALSE(loop.settings.empty());
  }
  Trial trial(const std::string& name) const {
    const LiveLedger ledger = tuner.ledger();
    for (const Trial& trial : ledger.ledger.trials) {
      if (trial.name == name) return trial;
    }
    throw std::out_of_range(name);
  }
  LiveLedger::Estimate estimate(const std::string& name) const {
    const LiveLedger ledger = tuner.ledger();
    for (std::size_t i = 0; i < ledger.estimates.size(); ++i) {
      if (ledger.ledger.trials[i].name == name) return ledger.estimates[i];
    }
    throw std::out_of_range(name);
  }
  std::int64_t units_under(const std::string& key, std::size_t from = 0) const {
    return std::count_if(loop.in_force_of_unit.begin() + static_cast<std::ptrdiff_t>(from), loop.in_force_of_unit.end(),
                         [&](const Settings& settings) { return settings.contains(key); });
  }
};

}  // namespace headrace
