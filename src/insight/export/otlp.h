// Metrics as OpenTelemetry takes them over HTTP: the body of a POST to ENDPOINT/v1/metrics.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "insight/export/metric.h"

namespace headrace {

inline constexpr std::string_view kOtlpContentType = "application/json";

// Who sends, and since when: counters and histograms are totals from `start_wall_ns` on.
struct OtlpSource {
  std::string service = "headrace";     // The attribute service.name.
  std::vector<MetricLabel> attributes;  // Further ones: "host.name", "process.pid".
  std::int64_t start_wall_ns = 0;       // Since 1970.
};

// An ExportMetricsServiceRequest in OTLP's JSON encoding (opentelemetry-proto 1.x: 64-bit integers and numbers that are
// not finite as texts): gauges, monotonic cumulative sums, cumulative histograms with their extremes. A point that is
// unavailable has the flag "no recorded value" and no value. "seconds" and "bytes" are told as UCUM's "s" and "By",
// another unit as it is. Error{invalid_argument}: metric_families'. A pure function; any thread.
std::string otlp_metrics_json(std::span<const Metric> metrics, const OtlpSource& source, std::int64_t wall_ns);

}  // namespace headrace
