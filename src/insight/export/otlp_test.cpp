// Against the published JSON encoding: the shape of opentelemetry-proto's examples/metrics.json.
#include "insight/export/otlp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using nlohmann::json;

json metrics_of(const std::vector<Metric>& metrics) {
  const json request =
      json::parse(otlp_metrics_json(metrics, {"job", {{"host.name", "box \xff"}}, 5}, 1'700'000'000'000'000'001));
  const json& resource = request["resourceMetrics"][0];
  EXPECT_EQ(resource["resource"]["attributes"],
            json::parse("[{\"key\":\"service.name\",\"value\":{\"stringValue\":\"job\"}},"
                        "{\"key\":\"host.name\",\"value\":{\"stringValue\":\"box \xef\xbf\xbd\"}}]"));
  EXPECT_EQ(resource["scopeMetrics"][0]["scope"]["name"], "headrace");
  return resource["scopeMetrics"][0]["metrics"];
}

Metric metric_of(const std::string& name, MetricKind kind, std::optional<double> value) {
  Metric metric;
  metric.name = name;
  metric.kind = kind;
  metric.value = value;
  return metric;
}

TEST(Otlp, GaugesSumsAndHistogramsHaveTheEncodingOfTheirProtos) {
  Metric gauge = metric_of("memory.resident", MetricKind::gauge, 1.5);
  gauge.unit = "bytes";
  gauge.help = "Resident.";
  gauge.labels = {{"rank", "0"}};
  Metric histogram = metric_of("step", MetricKind::histogram, std::nullopt);
  histogram.unit = "seconds";
  histogram.histogram = HistogramBuckets{{0.1, 0.5}, {3, 2, 1}, 1.5, 0.5, 0.05, 0.75};
  const json metrics = metrics_of({gauge, metric_of("samples", MetricKind::counter, 7), histogram});
  EXPECT_EQ(metrics[0],
            json::parse(R"({"name":"memory.resident","description":"Resident.","unit":"By","gauge":{"dataPoints":[
      {"attributes":[{"key":"rank","value":{"stringValue":"0"}}],"timeUnixNano":"1700000000000000001","asDouble":1.5}]}})"));
  EXPECT_EQ(metrics[1],
            json::parse(R"({"name":"samples","unit":"1","sum":{"aggregationTemporality":2,"isMonotonic":true,
      "dataPoints":[{"attributes":[],"startTimeUnixNano":"5","timeUnixNano":"1700000000000000001","asDouble":7.0}]}})"));
  EXPECT_EQ(metrics[2], json::parse(R"({"name":"step","unit":"s","histogram":{"aggregationTemporality":2,"dataPoints":[
      {"attributes":[],"startTimeUnixNano":"5","timeUnixNano":"1700000000000000001","count":"6","sum":1.5,
       "bucketCounts":["3","2","1"],"explicitBounds":[0.1,0.5],"min":0.05,"max":0.75}]}})"));
}

TEST(Otlp, UnavailableHasAFlagAndNanIsAText) {
  const json metrics = metrics_of({metric_of("a", MetricKind::gauge, std::nullopt),
                                   metric_of("b", MetricKind::gauge, std::numeric_limits<double>::quiet_NaN()),
                                   metric_of("c", MetricKind::gauge, -std::numeric_limits<double>::infinity()),
                                   metric_of("d", MetricKind::histogram, std::nullopt)});
  const auto point = [&](std::size_t i) { return metrics[i][i == 3 ? "histogram" : "gauge"]["dataPoints"][0]; };
  EXPECT_EQ(point(0)["flags"], 1);
  EXPECT_FALSE(point(0).contains("asDouble"));
  EXPECT_EQ(point(1)["asDouble"], "NaN");
  EXPECT_EQ(point(2)["asDouble"], "-Infinity");
  EXPECT_EQ(point(3)["flags"], 1);
  EXPECT_FALSE(point(3).contains("count"));
}

TEST(Otlp, LabelsAreDataPointsOfOneMetric) {
  Metric one = metric_of("gpu", MetricKind::gauge, 1), two = one;
  two.labels = {{"gpu", "1"}};
  const json metrics = metrics_of({one, two});
  ASSERT_EQ(metrics.size(), 1U);
  EXPECT_EQ(metrics[0]["gauge"]["dataPoints"].size(), 2U);
  error_of(ErrorCode::invalid_argument, [&] { metrics_of({one, one}); });
}

}  // namespace
}  // namespace headrace
