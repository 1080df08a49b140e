// Changes that builds bring one after the other, each too small to be seen by itself or one large enough to be named:
// change points of a metric over the comparisons of many builds.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// A build, and what it was compared with. Only differences within a comparison count, never levels: a machine's level
// moves from job to job by more than builds differ.
struct HistoryPoint {
  std::string label;
  std::optional<std::size_t> parent;  // The point before it that it was compared with; nullopt: the first of its kind.
  double effect = 0;                  // Against the parent; above 0: worse.
  double deviation = 0;               // Standard deviation of the effect, above 0 with a parent.
};

// From points[first] to points[last] the metric has become worse (or better) by so much.
struct Drift {
  std::size_t first = 0, last = 0;
  double effect = 0, low = 0, high = 0;  // 95 %.
  std::size_t largest = 0;               // The point that brought most of it, against the point before it.
  double largest_effect = 0;
};

// Points are in order of time, parents stand before their children; of more than 200 the last 200 count. Looks at the
// difference of every two points along their comparisons; the one that stands out most from its deviation is a drift,
// where it would not do so in one of a hundred histories without any change (Bonferroni over all pairs) and is at least
// `effect_min` (above 0). The same is then looked for before and behind it. In order of time. The
// cost grows with the third power of the points.
std::vector<Drift> find_drifts(std::span<const HistoryPoint> points, double effect_min);

}  // namespace headrace
