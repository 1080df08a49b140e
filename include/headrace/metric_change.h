// What a comparison says of one metric: the same words in C++, Python, JSON and reports.
#pragma once

namespace headrace {

enum class MetricChange {
  regressed,     // Proven worse, and its middle by at least the tolerance.
  improved,      // The other way round.
  equivalent,    // Proven to be within the tolerance, either way.
  inconclusive,  // None of these, so far.
  missing,       // OLD tells it, or somebody asked for it, and NEW does not: that is a failure. Never of functions.
};
const char* to_string(MetricChange change) noexcept;

}  // namespace headrace
