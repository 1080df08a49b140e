// Long series made short enough for a page.
#pragma once

#include <headrace/report.h>

#include <cstddef>
#include <vector>

namespace headrace::detail {

inline constexpr std::size_t kPairsMax = 200;        // Dots of a chart of its own.
inline constexpr std::size_t kChangePairsMax = 60;   // Of one in a row of a table.
inline constexpr std::size_t kCurvePointsMax = 600;  // Of a line.
inline constexpr std::size_t kTableRowsMax = 200;    // Of the table beside it.

// The least n so that every n-th of `count` values from the first one on are at most `values_max` (at least 1).
std::size_t stride_of(std::size_t count, std::size_t values_max);
// Every stride_of()-th value from the first one on.
std::vector<double> thinned(const std::vector<double>& values, std::size_t values_max);
// Of each equal share of the points the one with the least and the one with the most y, in their order, so that at most
// `points_max` (at least 2) are left. A share without a finite y keeps its first point, which is a gap in the line. As
// many x as y.
Report::Curve thinned(const Report::Curve& curve, std::size_t points_max);

}  // namespace headrace::detail
