#include "insight/export/metric_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Metric gauge(const std::string& name, std::optional<double> value) {
  Metric metric;
  metric.name = name;
  metric.value = value;
  return metric;
}

class MetricLogTest : public testing::Test {
 protected:
  std::string content() const { return read_file(path_, 1 << 20); }
  std::vector<json> rows() const {
    std::vector<json> rows;
    std::istringstream lines{content()};
    for (std::string line; std::getline(lines, line);) rows.push_back(json::parse(line));
    return rows;
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "metrics";
  static constexpr MetricMoment kMoment{1'700'000'000'000'000'001, 3};
};

TEST_F(MetricLogTest, CsvHasARowAPointAndAnEmptyCellForWhatIsUnavailable) {
  {
    MetricLog log{path_, MetricLogForm::csv};
    Metric power = gauge("gpu, power", 61.5);
    power.labels = {{"gpu", "0"}, {"rank", "1"}};
    log.add(power, kMoment);
    log.add(gauge("loss", std::nullopt), kMoment);
    log.add(gauge("loss", -std::numeric_limits<double>::infinity()), {-1, 4});
    log.add(gauge("loss", 0.1), {0, 5});
  }
  EXPECT_EQ(content(),
            "wall_time,step,metric,labels,value\n"
            "1700000000.000000001,3,\"gpu, power\",gpu=0;rank=1,61.5\n"
            "1700000000.000000001,3,loss,,\n"
            "-0.000000001,4,loss,,-inf\n"
            "0.000000000,5,loss,,0.1\n");
}

TEST_F(MetricLogTest, JsonLinesTellValuesTextsAndBuckets) {
  Metric histogram = gauge("step", std::nullopt);
  histogram.histogram = HistogramBuckets{{0.5}, {3, 2}, 1.5, 0.5, 0.25, 0.75};
  {
    MetricLog log{path_, MetricLogForm::jsonl};
    Metric power = gauge("gpu.\"power\"", 61.5);
    power.labels = {{"gpu", "0"}};
    log.add(power, kMoment);
    log.add(gauge("loss", std::nullopt), kMoment);
    log.add(gauge("loss", std::numeric_limits<double>::quiet_NaN()), kMoment);
    log.add(histogram, kMoment);
  }
  const std::vector<json> found = rows();
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0], json::parse(R"({"version":1,"wall_time":1700000000.000000001,"step":3,"metric":"gpu.\"power\"",
                                      "labels":{"gpu":"0"},"value":61.5})"));
  EXPECT_TRUE(found[1]["value"].is_null());
  EXPECT_FALSE(found[1].contains("text"));
  EXPECT_TRUE(found[2]["value"].is_null());
  EXPECT_EQ(found[2]["text"], "nan");
  EXPECT_EQ(found[3]["histogram"],
            json::parse(R"({"upper_bounds":[0.5],"counts":[3,2],"sum":1.5,"min":0.25,"max":0.75})"));
}

TEST_F(MetricLogTest, CsvRowsOfAHistogramAreItsTotals) {
  Metric histogram = gauge("step", std::nullopt);
  histogram.histogram = HistogramBuckets{{0.5}, {3, 2}, 1.5, 0.5, 0.25, 0.75};
  MetricLog log{path_, MetricLogForm::csv};
  log.add(histogram, {});
  log.flush();
  EXPECT_THAT(content(), HasSubstr("0.000000000,0,step.count,,5\n0.000000000,0,step.sum,,1.5\n"
                                   "0.000000000,0,step.min,,0.25\n0.000000000,0,step.max,,0.75\n"));
}

TEST_F(MetricLogTest, ALaterProcessGoesOnBehindTheLastWholeLine) {
  for (const MetricLogForm form : {MetricLogForm::csv, MetricLogForm::jsonl}) {
    std::filesystem::remove(path_);
    { MetricLog{path_, form}.add(gauge("a", 1), kMoment); }
    const std::string before = content();
    write_file(path_, before + before.substr(before.size() - 9, 7));
    { MetricLog{path_, form}.add(gauge("a", 1), kMoment); }
    const std::string line = before.substr(form == MetricLogForm::csv ? before.find('\n') + 1 : 0);
    EXPECT_EQ(content(), before + line);
  }
}

TEST_F(MetricLogTest, AnotherFileIsNotAppendedTo) {
  for (const std::string other : {"a\n", "{\"version\":2,\"wall_time\":1}\n", "wall_time,step,metric,value\n"}) {
    write_file(path_, other);
    for (const MetricLogForm form : {MetricLogForm::csv, MetricLogForm::jsonl}) {
      EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { MetricLog(path_, form); }), HasSubstr(path_.string()));
    }
    EXPECT_EQ(content(), other);
  }
  MetricLog log{folder_.path() / "new", MetricLogForm::csv};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { log.add(gauge("", 1), {}); }), HasSubstr("wanted a name"));
}

}  // namespace
}  // namespace headrace
