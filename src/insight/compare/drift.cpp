#include "insight/compare/drift.h"

#include <algorithm>
#include <cmath>

#include "core/base/fail.h"
#include "insight/tune/statistics.h"

namespace headrace {
namespace {

constexpr std::size_t kPointsMax = 200;
constexpr double kError = 0.01;
constexpr int kNormalDegrees = 1000;  // Of Student's t that is as good as normal.

struct Difference {
  double effect = 0;
  double variance = 0;
};

// Differences of any two points of one tree of comparisons.
class Levels {
 public:
  explicit Levels(std::span<const HistoryPoint> points)
      : offset_(points.size() > kPointsMax ? points.size() - kPointsMax : 0) {
    for (std::size_t i = offset_; i < points.size(); ++i) {
      const HistoryPoint& point = points[i];
      HEADRACE_CHECK(!point.parent || *point.parent < i, "point {} comes before its parent", i);
      if (!point.parent || *point.parent < offset_) {
        nodes_.push_back({});
        continue;
      }
      const std::size_t parent = *point.parent - offset_;
      const Node& above = nodes_[parent];
      nodes_.push_back(
          {parent, above.depth + 1, above.level + point.effect, above.variance + point.deviation * point.deviation});
    }
  }

  std::size_t size() const { return nodes_.size(); }
  std::size_t offset() const { return offset_; }

  // nullopt: nothing leads from one to the other.
  std::optional<Difference> between(std::size_t first, std::size_t last) const {
    const std::optional<std::size_t> meeting = meeting_of(first, last);
    if (!meeting) return std::nullopt;
    const double variance = nodes_[first].variance + nodes_[last].variance - 2 * nodes_[*meeting].variance;
    return Difference{nodes_[last].level - nodes_[first].level, variance};
  }

 private:
  struct Node {
    std::optional<std::size_t> parent;
    std::size_t depth = 0;
    double level = 0, variance = 0;
  };

  std::optional<std::size_t> meeting_of(std::size_t left, std::size_t right) const {
    while (left != right) {
      std::size_t& deeper = nodes_[left].depth >= nodes_[right].depth ? left : right;
      if (!nodes_[deeper].parent) return std::nullopt;
      deeper = *nodes_[deeper].parent;
    }
    return left;
  }

  std::size_t offset_;
  std::vector<Node> nodes_;
};

class Search {
 public:
  Search(const Levels& levels, double effect_min) : levels_(levels), effect_min_(effect_min) {
    const auto count = static_cast<double>(levels.size());
    score_min_ = student_quantile(kNormalDegrees, kError / 2 / std::max(1.0, count * (count - 1) / 2));
  }

  // Among the points from `begin` to `end`, both included.
  void look(std::size_t begin, std::size_t end, std::vector<Drift>& found) const {
    std::optional<Drift> best;
    double best_score = score_min_;
    for (std::size_t first = begin; first < end; ++first) {
      for (std::size_t last = first + 1; last <= end; ++last) {
        const std::optional<Difference> difference = levels_.between(first, last);
        if (!difference || !(difference->variance > 0) || std::abs(difference->effect) < effect_min_) continue;
        const double deviation = std::sqrt(difference->variance);
        const double score = std::abs(difference->effect) / deviation;
        if (score < best_score) continue;
        best_score = score;
        const double reach = deviations95_ * deviation;
        best = Drift{first, last, difference->effect, difference->effect - reach, difference->effect + reach, last, 0};
      }
    }
    if (!best) return;
    look(begin, best->first, found);
    found.push_back(with_largest(*best));
    look(best->last, end, found);
  }

 private:
  Drift with_largest(Drift drift) const {
    for (std::size_t point = drift.first + 1; point <= drift.last; ++point) {
      const std::optional<Difference> step = levels_.between(point - 1, point);
      if (!step || step->effect * drift.effect <= 0) continue;
      if (std::abs(step->effect) <= std::abs(drift.largest_effect)) continue;
      drift.largest = point;
      drift.largest_effect = step->effect;
    }
    drift.first += levels_.offset();
    drift.last += levels_.offset();
    drift.largest += levels_.offset();
    return drift;
  }

  const Levels& levels_;
  double effect_min_;
  double score_min_;
  const double deviations95_ = student_quantile(kNormalDegrees, kTailError);
};

}  // namespace

std::vector<Drift> find_drifts(std::span<const HistoryPoint> points, double effect_min) {
  HEADRACE_CHECK(effect_min > 0, "a drift of at least {}", effect_min);
  std::vector<Drift> found;
  if (points.size() < 2) return found;
  const Levels levels(points);
  Search(levels, effect_min).look(0, levels.size() - 1, found);
  return found;
}

}  // namespace headrace
