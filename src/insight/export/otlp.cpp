#include "insight/export/otlp.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCumulative = 2;       // AggregationTemporality.
constexpr int kNoRecordedValue = 1;  // DataPointFlags.

// A double as protobuf's JSON has it.
Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

template <class Integer>
Json text(Integer value) {
  return fmt::to_string(value);
}

Json attributes(const std::vector<MetricLabel>& labels) {
  Json list = Json::array();
  for (const MetricLabel& label : labels) {
    Json attribute = Json::object();
    attribute["key"] = label.name;
    attribute["value"]["stringValue"] = label.value;
    list.push_back(std::move(attribute));
  }
  return list;
}

std::string ucum(const std::string& unit) {
  if (unit == "seconds") return "s";
  if (unit == "bytes") return "By";
  return unit.empty() ? "1" : unit;
}

Json point(const Metric& metric, const OtlpSource& source, std::int64_t wall_ns) {
  Json made = Json::object();
  made["attributes"] = attributes(metric.labels);
  if (metric.kind != MetricKind::gauge) made["startTimeUnixNano"] = text(source.start_wall_ns);
  made["timeUnixNano"] = text(wall_ns);
  if (metric.kind != MetricKind::histogram) {
    if (metric.value) {
      made["asDouble"] = number(*metric.value);
    } else {
      made["flags"] = kNoRecordedValue;
    }
    return made;
  }
  if (!metric.histogram) {
    made["flags"] = kNoRecordedValue;
    return made;
  }
  const HistogramBuckets& buckets = *metric.histogram;
  made["count"] = text(buckets.count());
  made["sum"] = number(buckets.sum);
  made["bucketCounts"] = Json::array();
  for (const std::uint64_t count : buckets.counts) made["bucketCounts"].push_back(text(count));
  made["explicitBounds"] = buckets.upper_bounds;
  if (buckets.count() > 0) {
    made["min"] = number(buckets.min);
    made["max"] = number(buckets.max);
  }
  return made;
}

Json family_json(const MetricFamily& family, const OtlpSource& source, std::int64_t wall_ns) {
  const Metric& first = *family.points.front();
  Json made = Json::object();
  made["name"] = first.name;
  if (!first.help.empty()) made["description"] = first.help;
  made["unit"] = ucum(first.unit);
  Json points = Json::array();
  for (const Metric* metric : family.points) points.push_back(point(*metric, source, wall_ns));
  const char* const kinds[] = {"gauge", "sum", "histogram"};
  Json& data = made[kinds[static_cast<std::size_t>(first.kind)]];
  data["dataPoints"] = std::move(points);
  if (first.kind != MetricKind::gauge) data["aggregationTemporality"] = kCumulative;
  if (first.kind == MetricKind::counter) data["isMonotonic"] = true;
  return made;
}

}  // namespace

std::string otlp_metrics_json(std::span<const Metric> metrics, const OtlpSource& source, std::int64_t wall_ns) {
  std::vector<MetricLabel> resource{{"service.name", source.service}};
  resource.insert(resource.end(), source.attributes.begin(), source.attributes.end());
  Json families = Json::array();
  for (const MetricFamily& family : metric_families(metrics)) families.push_back(family_json(family, source, wall_ns));
  Json scope_metrics = Json::object();
  scope_metrics["scope"]["name"] = "headrace";
  scope_metrics["metrics"] = std::move(families);
  Json resource_metrics = Json::object();
  resource_metrics["resource"]["attributes"] = attributes(resource);
  resource_metrics["scopeMetrics"] = Json::array();
  resource_metrics["scopeMetrics"].push_back(std::move(scope_metrics));
  Json request = Json::object();
  request["resourceMetrics"] = Json::array();
  request["resourceMetrics"].push_back(std::move(resource_metrics));
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace headrace
