#include "insight/diagnose/detail/series.h"

#include <algorithm>
#include <cmath>

namespace headrace::detail {

std::size_t stride_of(std::size_t count, std::size_t values_max) {
  return (count + values_max - 1) / values_max;
}

std::vector<double> thinned(const std::vector<double>& values, std::size_t values_max) {
  const std::size_t stride = stride_of(values.size(), values_max);
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); i += stride) result.push_back(values[i]);
  return result;
}

Report::Curve thinned(const Report::Curve& curve, std::size_t points_max) {
  const std::size_t count = curve.x.size(), shares = points_max / 2;
  if (count <= points_max) return curve;
  Report::Curve result{curve.name, curve.unit, {}, {}};
  const auto keep = [&](std::size_t i) {
    result.x.push_back(curve.x[i]);
    result.y.push_back(curve.y[i]);
  };
  for (std::size_t share = 0; share < shares; ++share) {
    const std::size_t begin = share * count / shares, end = (share + 1) * count / shares;
    std::size_t least = end, most = end;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(curve.y[i])) continue;
      if (least == end || curve.y[i] < curve.y[least]) least = i;
      if (most == end || curve.y[i] > curve.y[most]) most = i;
    }
    if (least == end) least = most = begin;
    keep(std::min(least, most));
    if (least != most) keep(std::max(least, most));
  }
  return result;
}

}  // namespace headrace::detail
