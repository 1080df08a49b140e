#include "insight/export/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

Metric gauge(const std::string& name, std::optional<double> value, std::vector<MetricLabel> labels = {}) {
  Metric metric;
  metric.name = name;
  metric.value = value;
  metric.labels = std::move(labels);
  return metric;
}

TEST(Prometheus, OneTypeAFamilyAndOneSampleASetOfLabels) {
  Metric rate = gauge("train.samples_per_second", 1234.5);
  rate.help = "Samples\\steps\nof the last second.";
  Metric bytes = gauge("disk.read", 1e18);
  bytes.kind = MetricKind::counter;
  bytes.unit = "bytes";
  const Metric metrics[] = {gauge("gpu.utilization", 0.25, {{"gpu", "0"}}), rate,
                            gauge("gpu.utilization", 0.5, {{"gpu", "1"}, {"na.me", "a\"b\\c\nd"}}), bytes};
  EXPECT_EQ(prometheus_text(metrics),
            "# TYPE headrace_gpu_utilization gauge\n"
            "headrace_gpu_utilization{gpu=\"0\"} 0.25\n"
            "headrace_gpu_utilization{gpu=\"1\",na_me=\"a\\\"b\\\\c\\nd\"} 0.5\n"
            "# HELP headrace_train_samples_per_second Samples\\\\steps\\nof the last second.\n"
            "# TYPE headrace_train_samples_per_second gauge\n"
            "headrace_train_samples_per_second 1234.5\n"
            "# TYPE headrace_disk_read_bytes_total counter\n"
            "headrace_disk_read_bytes_total 1e+18\n");
}

TEST(Prometheus, BucketsAreCumulative) {
  Metric metric = gauge("step", std::nullopt, {{"rank", "0"}});
  metric.kind = MetricKind::histogram;
  metric.unit = "seconds";
  metric.histogram = HistogramBuckets{{0.1, 0.5}, {3, 2, 1}, 1.5};
  EXPECT_EQ(prometheus_text({&metric, 1}),
            "# TYPE headrace_step_seconds histogram\n"
            "headrace_step_seconds_bucket{rank=\"0\",le=\"0.1\"} 3\n"
            "headrace_step_seconds_bucket{rank=\"0\",le=\"0.5\"} 5\n"
            "headrace_step_seconds_bucket{rank=\"0\",le=\"+Inf\"} 6\n"
            "headrace_step_seconds_sum{rank=\"0\"} 1.5\n"
            "headrace_step_seconds_count{rank=\"0\"} 6\n");
}

TEST(Prometheus, UnavailableIsNeverAZeroAndNanIsANumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Metric metrics[] = {gauge("gpu.power", std::nullopt), gauge("loss", std::numeric_limits<double>::quiet_NaN()),
                            gauge("bound", infinity, {{"side", "high"}}), gauge("bound", -infinity, {{"side", "low"}}),
                            gauge("bound", std::nullopt, {{"side", "none"}})};
  EXPECT_EQ(prometheus_text(metrics),
            "# headrace_gpu_power: unavailable\n"
            "# TYPE headrace_loss gauge\n"
            "headrace_loss NaN\n"
            "# TYPE headrace_bound gauge\n"
            "headrace_bound{side=\"high\"} +Inf\n"
            "headrace_bound{side=\"low\"} -Inf\n");
}

TEST(Prometheus, TwoNamesThatBecomeOneAreRefused) {
  const Metric metrics[] = {gauge("a.b", 1), gauge("a_b", 1)};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { prometheus_text(metrics); }),
              HasSubstr("a.b and a_b would both be headrace_a_b"));
  EXPECT_EQ(prometheus_text({}), "");
}

}  // namespace
}  // namespace headrace
