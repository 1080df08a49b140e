// Chrome's JSON in parts, with flows, and of spans that do not nest.
#include "core/trace/chrome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing::ElementsAre;

class ChromeParts : public testing::Test {
 protected:
  static json parse(const std::filesystem::path& path) { return json::parse(read_file(path, 1 << 24)); }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "trace.json";
};

TraceRecord spans(std::int64_t count) {
  TraceRecord record;
  record.names = {{"work", "work"}};
  record.threads = {"main"};
  for (std::int64_t i = 0; i < count; ++i) record.events.push_back({0, 0, 10 * i, 10 * i + 5, i});
  record.duration_ns = 10 * count;
  record.dropped = 3;
  return record;
}

TEST_F(ChromeParts, TogetherHoldEveryEventOnceAndNoneIsLongerThanAskedFor) {
  constexpr std::int64_t kBytes = 20'000;
  const auto paths = write_chrome_parts(spans(1000), path_, {}, kBytes);
  ASSERT_GT(paths.size(), 3U);
  EXPECT_EQ(paths[0], path_);
  EXPECT_EQ(paths[1], folder_.path() / "trace-2.json");
  std::int64_t next = 0;
  for (const auto& path : paths) {
    EXPECT_LT(static_cast<std::int64_t>(std::filesystem::file_size(path)), kBytes + 200);
    const json part = parse(path);
    EXPECT_EQ(part["otherData"]["dropped"], 3);
    EXPECT_NO_THROW(read_chrome_trace(path.string()));
    for (const json& event : part["traceEvents"]) {
      if (event["ph"] != "X") continue;
      EXPECT_EQ(event["args"]["value"], next++);
    }
  }
  EXPECT_EQ(next, 1000);
}

TEST_F(ChromeParts, SmallTraceIsOneFileWithTheBytesOfThePlainWriter) {
  EXPECT_THAT(write_chrome_parts(spans(10), path_, {}), ElementsAre(path_));
  write_chrome_trace(spans(10), (folder_.path() / "plain.json").string());
  EXPECT_EQ(read_file(path_, 1 << 20), read_file(folder_.path() / "plain.json", 1 << 20));
  EXPECT_THAT(write_chrome_parts({}, path_, {}), ElementsAre(path_));
}

TEST_F(ChromeParts, FlowIsAPairOfEventsAtTheBeginsOfItsSpans) {
  TraceRecord record = spans(3);
  record.threads = {"main", "loader"};
  record.events[1].thread = 1;
  const TraceFlow flows[] = {{0, 2}, {1, 2}};
  write_chrome_parts(record, path_, flows);
  std::vector<std::string> found;
  const json written = parse(path_);
  for (const json& event : written["traceEvents"]) {
    if (event["ph"] != "s" && event["ph"] != "f") continue;
    found.push_back(event["ph"].get<std::string>() + event["id"].dump() + " " + event["tid"].dump() + " " +
                    event["ts"].dump());
    EXPECT_EQ(event.contains("bp"), event["ph"] == "f");
  }
  EXPECT_THAT(found, ElementsAre("s1 0 0.0", "s2 1 0.01", "f1 0 0.02", "f2 0 0.02"));
  EXPECT_EQ(read_chrome_trace(path_.string()).events.size(), 3U);  // Flows are read over.
  const TraceFlow wrong[] = {{2, 0}};
  error_of(ErrorCode::invalid_argument, [&] { write_chrome_parts(record, path_, wrong); });
}

TEST_F(ChromeParts, SpansOfATrackNestStrictly) {
  TraceRecord record;
  record.names = {{"work", "work"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 10'000, 0}, {0, 0, 5'000, 15'000, 1}, {0, 0, 6'000, 9'000, 2}};
  write_chrome_parts(record, path_, {});
  std::map<int, std::string> names;
  std::vector<int> tracks;
  const json written = parse(path_);
  for (const json& event : written["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"].get<int>()] = event["args"]["name"].get<std::string>();
    if (event["ph"] == "X") tracks.push_back(event["tid"].get<int>());
  }
  EXPECT_THAT(names, ElementsAre(testing::Pair(0, "main"), testing::Pair(1, "main (2)")));
  EXPECT_THAT(tracks, ElementsAre(0, 1, 0));
  // Read again, they are spans of their thread.
  const TraceRecord read = read_chrome_trace(path_.string());
  EXPECT_THAT(read.threads, ElementsAre("main"));
  ASSERT_EQ(read.events.size(), 3U);
  for (const TraceEvent& event : read.events) EXPECT_EQ(event.thread, 0U);
}

}  // namespace
}  // namespace headrace
