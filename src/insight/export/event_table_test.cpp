#include "insight/export/event_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

class EventTable : public testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "events";
};

TraceRecord sample() {
  TraceRecord record;
  record.names = {{"step", "step"}, {"a \"b\", c\n", "work"}, {"fill", "mark"}};
  record.threads = {"main", "loader \xff"};
  record.events = {{0, 0, 0, 1'234'567'891, 7}, {1, 0, 1, 2, -1}, {2, 1, 5, 5, 3}};
  record.counters = {{"bytes_read", 123}};
  record.dropped = 17;
  record.duration_ns = 2'000'000'000;
  return record;
}

TEST_F(EventTable, CsvQuotesWhatRfc4180Wants) {
  write_trace_csv(sample(), path_);
  EXPECT_EQ(read_file(path_, 1 << 20),
            "kind,name,category,thread,begin_ns,duration_ns,value\n"
            "span,step,step,main,0,1234567891,7\n"
            "span,\"a \"\"b\"\", c\n\",work,main,1,1,-1\n"
            "gauge,fill,mark,loader \xff,5,,3\n"
            "counter,bytes_read,,,,,123\n"
            "counter,dropped events,,,,,17\n");
}

TEST_F(EventTable, JsonLinesHoldOneObjectEach) {
  write_trace_jsonl(sample(), path_);
  std::istringstream lines{read_file(path_, 1 << 20)};
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows[0], nlohmann::json::parse(R"({"kind":"trace","format":"headrace-events","version":1,
                                               "recorder":"headrace","start_ns":null,"duration_ns":2000000000,
                                               "dropped":17})"));
  EXPECT_EQ(rows[1],
            nlohmann::json::parse(R"({"kind":"span","name":"step","category":"step","thread":"main","begin_ns":0,
                                               "duration_ns":1234567891,"value":7})"));
  EXPECT_EQ(rows[2]["name"], "a \"b\", c\n");
  EXPECT_EQ(rows[3],
            nlohmann::json::parse("{\"kind\":\"gauge\",\"name\":\"fill\",\"category\":\"mark\",\"thread\":\"loader "
                                  "\xef\xbf\xbd\",\"begin_ns\":5,\"value\":3}"));
  EXPECT_EQ(rows[4], nlohmann::json::parse(R"({"kind":"counter","name":"bytes_read","value":123})"));
}

TEST_F(EventTable, LongTracesComeWhole) {
  TraceRecord record = sample();
  record.events.assign(20'000, record.events[0]);
  write_trace_csv(record, path_);
  const std::string csv = read_file(path_, 1 << 24);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 20'003);
}

}  // namespace
}  // namespace headrace
