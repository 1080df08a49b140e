#include "insight/tune/live_course.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace headrace {
namespace {

bool is_in_force(const Settings& changes, const Settings& settings) {
  if (changes.empty()) return false;
  return std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
    const auto found = settings.find(change.first);
    return found != settings.end() && found->second == change.second;
  });
}

// Turns that follow each other with it are one stretch.
std::vector<std::pair<std::int64_t, std::int64_t>> stretches_of(const Settings& changes, const LiveLedger& ledger) {
  std::vector<std::pair<std::int64_t, std::int64_t>> stretches;
  for (std::size_t i = 0; i < ledger.turns.size(); ++i) {
    const std::int64_t first = std::max<std::int64_t>(1, ledger.turns[i].update);
    const std::int64_t last =
        std::min(ledger.updates, i + 1 < ledger.turns.size() ? ledger.turns[i + 1].update - 1 : ledger.updates);
    if (last < first || !is_in_force(changes, ledger.turns[i].settings)) continue;
    if (!stretches.empty() && stretches.back().second + 1 == first) {
      stretches.back().second = last;
    } else {
      stretches.emplace_back(first, last);
    }
  }
  return stretches;
}

}  // namespace

std::optional<Report::Course> course_of(const LiveLedger& ledger) {
  if (ledger.turns.empty() || ledger.updates <= 0) return std::nullopt;
  Report::Course course;
  course.updates = ledger.updates;
  for (const Trial& trial : ledger.ledger.trials) {
    auto stretches = stretches_of(trial.changes, ledger);
    if (!stretches.empty()) course.rows.push_back({trial.name, std::move(stretches)});
  }
  return course;
}

}  // namespace headrace
