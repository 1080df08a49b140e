#include "insight/compare/stage_changes.h"

#include <algorithm>
#include <cmath>

#include "insight/tune/statistics.h"

namespace headrace {

void StageChanges::add(const std::map<std::string, double>& old_s, const std::map<std::string, double>& new_s) {
  double old_step_s = 0;
  for (const auto& [name, seconds] : old_s) old_step_s += seconds;
  if (!(old_step_s > 0) || new_s.empty()) return;
  ++pairs_;
  for (const auto& [name, seconds] : old_s) {
    const auto found = new_s.find(name);
    if (found == new_s.end()) continue;
    Stage& stage = stages_[name];
    stage.old_s.push_back(seconds);
    stage.new_s.push_back(found->second);
    stage.shares.push_back((found->second - seconds) / old_step_s);
  }
}

std::vector<StageChange> StageChanges::changes() const {
  std::vector<StageChange> changes;
  const double tail = kTailError / static_cast<double>(std::max<std::size_t>(1, stages_.size()));
  for (const auto& [name, stage] : stages_) {
    if (stage.shares.size() != pairs_) continue;
    const Estimate share = estimate_middle(stage.shares, tail, tail);
    changes.push_back({.name = name,
                       .old_s = median(stage.old_s),
                       .new_s = median(stage.new_s),
                       .share = {share.center, share.low, share.high},
                       .has_changed = share.low > 0 || share.high < 0});
  }
  std::stable_sort(changes.begin(), changes.end(), [](const StageChange& left, const StageChange& right) {
    return std::abs(left.share.median) > std::abs(right.share.median);
  });
  return changes;
}

}  // namespace headrace
