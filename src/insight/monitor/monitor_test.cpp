#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/monitor.h>
#include <sys/resource.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "insight/monitor/http.h"
#include "insight/monitor/sinks.h"
#include "insight/monitor/test_sockets.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

MonitorOptions quiet() {
  MonitorOptions options;
  options.system_interval = std::chrono::nanoseconds(0);
  options.write_interval = std::chrono::milliseconds(1);
  return options;
}

// Keeps the steps that it was given.
class Steps final : public MonitorSink {
 public:
  explicit Steps(std::vector<std::int64_t>& steps) : steps_(steps) {}
  Delivery write(std::span<const MonitorRecord> records) override {
    for (const MonitorRecord& record : records) steps_.push_back(record.step);
    return {};
  }

 private:
  std::vector<std::int64_t>& steps_;
};

// Says that it was entered, and stays there until it is let go.
class Gate final : public MonitorSink {
 public:
  Gate(std::binary_semaphore& entered, std::binary_semaphore& opened) : entered_(entered), opened_(opened) {}
  Delivery write(std::span<const MonitorRecord> /*records*/) override {
    if (is_open_) return {};
    is_open_ = true;
    entered_.release();
    opened_.acquire();
    return {};
  }

 private:
  std::binary_semaphore& entered_;
  std::binary_semaphore& opened_;
  bool is_open_ = false;
};

// Keeps what it was told.
class Sentences final : public MonitorSink {
 public:
  explicit Sentences(std::vector<std::string>& sentences) : sentences_(sentences) {}
  Delivery write(std::span<const MonitorRecord> /*records*/) override { return {}; }
  Delivery tell(const MonitorEvent& event) override {
    sentences_.push_back(event.sentence);
    return {};
  }

 private:
  std::vector<std::string>& sentences_;
};

class Broken final : public MonitorSink {
 public:
  Delivery write(std::span<const MonitorRecord> /*records*/) override { throw Error(ErrorCode::io, "it is broken"); }
};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

const SinkStatus& sink_named(const MonitorStatus& status, const std::string& key) {
  for (const SinkStatus& sink : status.sinks) {
    if (sink.applied.key == key) return sink;
  }
  ADD_FAILURE() << "no sink " << key;
  return status.sinks.at(0);
}

TEST(Monitor, ASinkGetsEveryRecordInItsOrder) {
  std::vector<std::int64_t> steps, wanted;
  {
    Monitor monitor(quiet());
    monitor.add_sink("steps", std::make_unique<Steps>(steps));
    for (std::int64_t step = 0; step < 500; ++step) {
      ASSERT_TRUE(monitor.record(step, {{"loss", 1.0}}));
      wanted.push_back(step);
    }
    ASSERT_TRUE(monitor.flush());
    EXPECT_EQ(sink_named(monitor.status(), "steps").records, 500);
    ASSERT_TRUE(monitor.record(500, {{"loss", 1.0}}));  // Which the destructor hands over.
    wanted.push_back(500);
  }
  EXPECT_EQ(steps, wanted);
}

TEST(Monitor, AFullQueueIsCountedAndNobodyWaitsForIt) {
  std::binary_semaphore entered{0}, opened{0};
  std::vector<std::int64_t> steps;
  MonitorOptions options = quiet();
  options.queue_records = 4;
  Monitor monitor(options);
  monitor.add_sink("gate", std::make_unique<Gate>(entered, opened));
  monitor.add_sink("steps", std::make_unique<Steps>(steps));
  ASSERT_TRUE(monitor.record(0, {{"loss", 1.0}}));
  entered.acquire();  // The monitor's thread stands in the sink, and has emptied the queue before.
  for (std::int64_t step = 1; step <= 4; ++step) EXPECT_TRUE(monitor.record(step, {{"loss", 1.0}}));
  for (std::int64_t step = 5; step <= 7; ++step) EXPECT_FALSE(monitor.record(step, {{"loss", 1.0}}));
  EXPECT_EQ(monitor.status().dropped, 3);
  EXPECT_FALSE(monitor.flush(std::chrono::milliseconds(1)));
  opened.release();
  EXPECT_TRUE(monitor.flush());
  EXPECT_EQ(monitor.status().recorded, 5);
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4));
}

TEST(Monitor, ASinkThatFailsIsOffWithItsReasonAndTheOthersGoOn) {
  std::vector<std::int64_t> steps;
  Monitor monitor(quiet());
  monitor.add_sink("broken", std::make_unique<Broken>());
  monitor.add_sink("steps", std::make_unique<Steps>(steps));
  for (std::int64_t step = 0; step < 3; ++step) {
    monitor.record(step, {{"loss", 1.0}});
    ASSERT_TRUE(monitor.flush());
  }
  const MonitorStatus status = monitor.status();
  const SinkStatus& broken = sink_named(status, "broken");
  EXPECT_EQ(broken.applied.applied, "off");
  EXPECT_EQ(broken.applied.reason, "it is broken");
  EXPECT_EQ(broken.lost, 3);
  EXPECT_EQ(broken.records, 0);
  EXPECT_EQ(sink_named(status, "steps").lost, 0);
  EXPECT_THAT(steps, ElementsAre(0, 1, 2));
}

TEST(Monitor, AFolderThatCannotBeMadeLeavesTheOtherSinksAndTheRunAlone) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  MonitorOptions options = quiet();
  options.tensorboard = (folder.path() / "file" / "runs").native();  // Below a file: root may not either.
  options.json_lines = (folder.path() / "metrics.jsonl").native();
  Monitor monitor(options);
  EXPECT_TRUE(monitor.record(3, {{"loss", 0.5}}));
  ASSERT_TRUE(monitor.flush());
  const MonitorStatus status = monitor.status();
  EXPECT_EQ(sink_named(status, "tensorboard").applied.applied, "off");
  EXPECT_THAT(sink_named(status, "tensorboard").applied.reason, HasSubstr("file"));
  const nlohmann::json line = nlohmann::json::parse(text_of(options.json_lines));
  EXPECT_EQ(line["metric"], "loss");
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["value"], 0.5);
}

// RLIMIT_FSIZE stands for a full disk: write() takes a part and then refuses.
TEST(Monitor, AFileThatMayNotGrowLosesRecordsThatAreCountedAndTheRunGoesOn) {
  const TemporaryFolder folder;
  MonitorOptions options = quiet();
  options.csv = (folder.path() / "metrics.csv").native();
  std::vector<std::int64_t> steps;
  Monitor monitor(options);
  monitor.add_sink("steps", std::make_unique<Steps>(steps));
  monitor.record(0, {{"loss", 1.0}});
  ASSERT_TRUE(monitor.flush());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = std::filesystem::file_size(options.csv);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);  // Of all files of the process: until the next call nothing is said.
  const bool is_recorded = monitor.record(1, {{"loss", 1.0}});
  const bool is_flushed = monitor.flush();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(is_recorded);
  EXPECT_TRUE(is_flushed);
  EXPECT_EQ(sink_named(monitor.status(), "csv").lost, 1);
  EXPECT_THAT(sink_named(monitor.status(), "csv").applied.reason, HasSubstr("File too large"));
  monitor.record(2, {{"loss", 1.0}});  // There is room again.
  ASSERT_TRUE(monitor.flush());
  EXPECT_EQ(sink_named(monitor.status(), "csv").records, 2);
  EXPECT_THAT(steps, ElementsAre(0, 1, 2));
  std::istringstream lines(text_of(options.csv));
  int count = 0;
  for (std::string line; std::getline(lines, line);) ++count;
  EXPECT_EQ(count, 3);  // The header and the two records, whole.
}

// By the grammar of the text exposition format: comments, and "NAME VALUE" with a name of [a-zA-Z_:][a-zA-Z0-9_:]*.
std::map<std::string, double> parsed_prometheus(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    EXPECT_THAT(name, testing::MatchesRegex("[a-zA-Z_:][a-zA-Z0-9_:]*")) << line;
    char* end = nullptr;
    const double value = std::strtod(line.c_str() + space + 1, &end);
    EXPECT_EQ(*end, '\0') << line;
    EXPECT_FALSE(values.contains(name)) << line;
    values[name] = value;
  }
  EXPECT_TRUE(text.empty() || text.ends_with('\n'));
  return values;
}

TEST(Monitor, DurationsThatWereAskedForAreHistogramsForPrometheusAndTensorBoard) {
  const TemporaryFolder folder;
  MonitorOptions options = quiet();
  options.prometheus = "0";
  options.tensorboard = (folder.path() / "runs").native();
  options.histograms = {"step_*"};
  std::string answer;
  {
    Monitor monitor(options);
    const std::string url = sink_named(monitor.status(), "prometheus").applied.applied;
    std::uint16_t port = 0;
    const std::size_t colon = url.rfind(':');
    std::from_chars(url.data() + colon + 1, url.data() + url.size(), port);
    for (const double step_s : {0.25, 0.5, 3.0}) monitor.record(1, {{"step_s", step_s}, {"loss", 1}});
    ASSERT_TRUE(monitor.flush());
    answer = exchanged(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  EXPECT_THAT(answer, HasSubstr("# TYPE headrace_step_s_distribution_seconds histogram\n"));
  EXPECT_THAT(answer, HasSubstr("headrace_step_s_distribution_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(answer, HasSubstr("headrace_step_s_distribution_seconds_sum 3.75\n"));
  EXPECT_THAT(answer, HasSubstr("headrace_step_s 3\n"));  // The newest value is there as before.
  EXPECT_THAT(answer, testing::Not(HasSubstr("loss_distribution")));
  const std::filesystem::directory_iterator events{folder.path() / "runs"};
  EXPECT_THAT(read_file(events->path(), 1 << 20), HasSubstr("step_s.distribution"));
}

TEST(Monitor, AScrapeDuringTheRunReadsTheNewestValues) {
  MonitorOptions options = quiet();
  options.prometheus = "0";
  Monitor monitor(options);
  const std::string url = sink_named(monitor.status(), "prometheus").applied.applied;
  EXPECT_THAT(url, testing::MatchesRegex("http://127.0.0.1:[0-9]+/metrics"));
  std::uint16_t port = 0;
  const std::size_t colon = url.rfind(':');
  std::from_chars(url.data() + colon + 1, url.data() + url.size(), port);
  for (const double loss : {0.5, 0.25}) {
    monitor.record(1,
                   {{"train.loss", loss}, {"lr", 1e-3}, {"train/loss", 9}});  // The last becomes the name of the first.
    ASSERT_TRUE(monitor.flush());
    const std::string answer = exchanged(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    const auto values = parsed_prometheus(answer.substr(answer.find("\r\n\r\n") + 4));
    EXPECT_EQ(values.at("headrace_train_loss"), loss);
    EXPECT_EQ(values.at("headrace_lr"), 1e-3);
    EXPECT_EQ(values.size(), 2U);
  }
}

TEST(Monitor, AListenersPortInUseIsOneReasonAndTheRunGoesOn) {
  HttpListener other({"127.0.0.1", 0}, {"/metrics", "text/plain", [] { return std::string(); }});
  MonitorOptions options = quiet();
  options.prometheus = other.address().text();
  Monitor monitor(options);
  EXPECT_TRUE(monitor.record(1, {{"loss", 1}}));
  EXPECT_TRUE(monitor.flush());
  const MonitorStatus status = monitor.status();
  const SinkStatus& sink = sink_named(status, "prometheus");
  EXPECT_EQ(sink.applied.applied, "off");
  EXPECT_THAT(sink.applied.reason, HasSubstr(options.prometheus));
  EXPECT_THAT(sink.applied.reason, HasSubstr("in use"));
}

TEST(Monitor, ACollectorGetsTheNewestValuesAsJsonAndOneThatIsGoneLosesThem) {
  OneAnswer collector("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  MonitorOptions options = quiet();
  options.otlp = "http://127.0.0.1:" + std::to_string(collector.port());
  Monitor monitor(options);
  monitor.record(7, {{"loss", 0.75}});
  const std::string request = collector.request();
  EXPECT_THAT(request, StartsWith("POST /v1/metrics HTTP/1.1\r\n"));
  const auto body = nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4));
  const auto& metric = body.at("resourceMetrics").at(0).at("scopeMetrics").at(0).at("metrics").at(0);
  EXPECT_EQ(metric.at("name"), "loss");
  EXPECT_EQ(metric.at("gauge").at("dataPoints").at(0).at("asDouble"), 0.75);
  ASSERT_TRUE(monitor.flush());
  EXPECT_EQ(sink_named(monitor.status(), "otlp").lost, 0);

  options.otlp = "http://127.0.0.1:1";  // tcpmux: nobody has it.
  Monitor alone(options);
  alone.record(1, {{"loss", 1}});
  ASSERT_TRUE(alone.flush());
  EXPECT_EQ(sink_named(alone.status(), "otlp").lost, 1);
  EXPECT_THAT(sink_named(alone.status(), "otlp").applied.reason, StartsWith("127.0.0.1:1: "));
  EXPECT_EQ(sink_named(alone.status(), "otlp").applied.applied, "http://127.0.0.1:1/v1/metrics");
}

TEST(Monitor, AnAddressWithTlsIsOffWithTheReasonAndNonsenseIsRefused) {
  MonitorOptions options = quiet();
  options.otlp = "https://collector.example";
  const Monitor monitor(options);
  EXPECT_EQ(sink_named(monitor.status(), "otlp").applied.applied, "off");
  EXPECT_THAT(sink_named(monitor.status(), "otlp").applied.reason, HasSubstr("no TLS"));
  options.otlp = "collector";
  EXPECT_THROW(Monitor{options}, Error);
  options = quiet();
  options.prometheus = "127.0.0.1";
  EXPECT_THROW(Monitor{options}, Error);
  options = quiet();
  options.queue_records = 0;
  EXPECT_THROW(Monitor{options}, Error);
}

TEST(Monitor, AlertsOfRecordedValuesAreTakenOnceAndToldToSinks) {
  MonitorOptions options = quiet();
  AlertRule rule;
  rule.name = "cache hit rate";
  rule.metric = "cache.hit_rate";
  rule.limit = 0.5;
  rule.counted_by = "cache.lookups";
  rule.count_min = 100;
  options.alerts = {rule};
  std::vector<std::string> told;
  Monitor monitor(options);
  monitor.add_sink("sentences", std::make_unique<Sentences>(told));
  monitor.record(1, {{"cache.hit_rate", 0.1}, {"cache.lookups", 99}});
  monitor.record(2, {{"cache.hit_rate", 0.1}, {"cache.lookups", 100}});
  monitor.record(3, {{"cache.hit_rate", 0.1}, {"cache.lookups", 300}});
  ASSERT_TRUE(monitor.flush());
  const std::vector<MonitorEvent> events = monitor.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "alert");
  EXPECT_EQ(events[0].level, EventLevel::warning);
  EXPECT_EQ(events[0].step, 2);
  EXPECT_EQ(std::get<double>(events[0].fields.at(4).value), 0.1);
  EXPECT_THAT(told, ElementsAre(events[0].sentence));
  EXPECT_TRUE(monitor.take_events().empty());
}

TEST(Monitor, FiguresOfTheMachineAreThereWithoutAnyRecord) {
  MonitorOptions options;
  options.system_interval = std::chrono::milliseconds(20);
  options.write_interval = std::chrono::milliseconds(5);
  std::vector<std::int64_t> steps;
  Monitor monitor(options);
  monitor.add_sink("steps", std::make_unique<Steps>(steps));
  const auto has = [&](const std::string& name) {
    for (const MetricValue& metric : monitor.latest()) {
      if (metric.name == name) return true;
    }
    return false;
  };
  for (int tries = 0; tries < 500 && !has("process.cpu_cores"); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(has("process.cpu_cores"));
  EXPECT_TRUE(has("monitor.dropped"));
}

TEST(Monitor, ValuesThatAreNotFinitePassAndAreCounted) {
  Monitor monitor(quiet());
  monitor.record(1, {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"lr", 1}});
  ASSERT_TRUE(monitor.flush());
  EXPECT_EQ(monitor.status().not_finite, 1);
  ASSERT_EQ(monitor.latest().size(), 2U);
  EXPECT_TRUE(std::isnan(monitor.latest()[0].value));
  EXPECT_THROW(monitor.record(1, {{"", 1}}), Error);
  monitor.clear();
  EXPECT_TRUE(monitor.latest().empty());
}

}  // namespace
}  // namespace headrace
