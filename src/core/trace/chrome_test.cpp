#include <headrace/error.h>
#include <headrace/trace.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <locale.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;

class ChromeTrace : public testing::Test {
 protected:
  // The message of the Error{corrupt_data} that reading `content` gives.
  std::string refusal(const std::string& content) {
    write_file(path_, content);
    std::string message = error_of(ErrorCode::corrupt_data, [this] { read_chrome_trace(path_); });
    EXPECT_THAT(message, testing::StartsWith("trace: " + path_ + ": ")) << content;
    return message;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() / "trace.json";
};

TraceRecord sample() {
  TraceRecord record;
  record.names = {{"step", "step"}, {"forward \"a\\b\"\n", "step"}, {"fill", "mark"}};
  record.threads = {"main", "loader 0"};
  record.events = {{0, 0, 0, 1'234'567'891, 7}, {1, 0, 1, 2, -1}, {2, 1, 5'000'000'000'003, 5'000'000'000'003, 3}};
  record.counters = {{"bytes_read", 123}, {"retries", -4}};
  record.dropped = 17;
  record.duration_ns = 6'000'000'000'000;
  return record;
}

void expect_equal(const TraceRecord& a, const TraceRecord& b) {
  ASSERT_EQ(a.names.size(), b.names.size());
  for (std::size_t i = 0; i < a.names.size(); ++i) {
    EXPECT_EQ(a.names[i].text, b.names[i].text);
    EXPECT_EQ(a.names[i].category, b.names[i].category);
  }
  EXPECT_EQ(a.threads, b.threads);
  ASSERT_EQ(a.events.size(), b.events.size());
  for (std::size_t i = 0; i < a.events.size(); ++i) {
    EXPECT_EQ(a.events[i].name, b.events[i].name);
    EXPECT_EQ(a.events[i].thread, b.events[i].thread);
    EXPECT_EQ(a.events[i].begin_ns, b.events[i].begin_ns);
    EXPECT_EQ(a.events[i].end_ns, b.events[i].end_ns);
    EXPECT_EQ(a.events[i].value, b.events[i].value);
  }
  ASSERT_EQ(a.counters.size(), b.counters.size());
  for (std::size_t i = 0; i < a.counters.size(); ++i) {
    EXPECT_EQ(a.counters[i].text, b.counters[i].text);
    EXPECT_EQ(a.counters[i].total, b.counters[i].total);
  }
  EXPECT_EQ(a.dropped, b.dropped);
  EXPECT_EQ(a.duration_ns, b.duration_ns);
}

TEST_F(ChromeTrace, WhatIsWrittenIsRead) {
  write_chrome_trace(sample(), path_);
  expect_equal(read_chrome_trace(path_), sample());
}

TEST_F(ChromeTrace, RecordingSurvivesTheFile) {
  static constexpr SpanName kWork{"work", "work"}, kFill{"fill", "mark"};
  Trace trace;
  for (int i = 0; i < 2000; ++i) {
    Span span{kWork, i};
    record_gauge(kFill, i);
  }
  const TraceRecord record = trace.stop();
  write_chrome_trace(record, path_);
  expect_equal(read_chrome_trace(path_), record);
}

TEST_F(ChromeTrace, StackOfOneMomentIsOneCounterEventWithOneValueASeries) {
  TraceRecord record;
  record.names = {{"memory.weights", "stack"},
                  {"memory.other", "stack"},
                  {"memory.peak", "mark"},
                  {"bare", "stack"},
                  {"disk.a\"\xff", "stack"}};
  record.threads = {"main", "memory"};
  // Of two threads, of two moments, a series that comes twice, and a gauge of another kind between.
  record.events = {{0, 0, 10, 10, 1}, {1, 0, 10, 10, 2}, {0, 1, 10, 10, 3}, {0, 1, 20, 20, 4}, {1, 1, 20, 20, 5},
                   {2, 1, 20, 20, 6}, {1, 1, 20, 20, 7}, {1, 1, 20, 20, 8}, {3, 1, 30, 30, 9}, {4, 1, 30, 30, 10}};
  record.duration_ns = 30;
  write_chrome_trace(record, path_);
  std::vector<std::string> counters;
  const auto document = nlohmann::json::parse(read_file(path_, 1 << 20));
  for (const auto& event : document["traceEvents"]) {
    if (event["ph"] != "C") continue;
    counters.push_back(event["name"].get<std::string>() + event["args"].dump());
  }
  EXPECT_THAT(counters, testing::ElementsAre(R"(memory{"other":2,"weights":1})", R"(memory{"weights":3})",
                                             R"(memory{"other":5,"weights":4})", R"(memory.peak{"value":6})",
                                             R"(memory{"other":7})", R"(memory{"other":8})", R"(bare{"value":9})",
                                             "disk{\"a\\\"\xef\xbf\xbd\":10}"));
  record.names.back().text = "disk.a\"\xef\xbf\xbd";
  expect_equal(read_chrome_trace(path_), record);
}

TEST_F(ChromeTrace, SpanTooShortToMeasureIsNoCounter) {
  static constexpr SpanName kBlink{"blink", "work"};
  Trace trace;
  for (int i = 0; i < 10000; ++i) Span span{kBlink};
  for (const TraceEvent& event : trace.stop().events) ASSERT_GT(event.end_ns, event.begin_ns);
}

TEST_F(ChromeTrace, EmptyRecordIsAFileToo) {
  write_chrome_trace({}, path_);
  expect_equal(read_chrome_trace(path_), {});
}

TEST_F(ChromeTrace, IsTheTraceEventFormat) {
  write_chrome_trace(sample(), path_);
  const auto document = nlohmann::json::parse(read_file(path_, 1 << 20));
  EXPECT_EQ(document["otherData"]["format"], "headrace-trace");
  EXPECT_EQ(document["otherData"]["version"], 1);
  EXPECT_EQ(document["otherData"]["recorder"], "headrace");
  EXPECT_EQ(document["otherData"]["dropped"], 17);
  std::map<std::string, int> phases;
  for (const auto& event : document["traceEvents"]) {
    ++phases[event["ph"]];
    EXPECT_TRUE(event["pid"].is_number_integer());
    EXPECT_EQ(event.contains("ts"), event["ph"] != "M");
    EXPECT_EQ(event.contains("dur"), event["ph"] == "X");
  }
  EXPECT_EQ(phases, (std::map<std::string, int>{{"M", 3}, {"X", 2}, {"C", 1}}));
  EXPECT_THAT(read_file(path_, 1 << 20), HasSubstr("\"ts\":0.001,\"dur\":0.001"));
}

TEST_F(ChromeTrace, DecimalCommaLocaleChangesNothing) {
  const char* comma = ::setlocale(LC_ALL, "de_DE.UTF-8");
  write_chrome_trace(sample(), path_);
  const TraceRecord record = read_chrome_trace(path_);
  if (comma != nullptr) ::setlocale(LC_ALL, "C");
  expect_equal(record, sample());
}

TEST_F(ChromeTrace, NamesThatAreNotUtf8AreMended) {
  TraceRecord record = sample();
  record.threads[0] = "a\xff";
  write_chrome_trace(record, path_);
  EXPECT_EQ(read_chrome_trace(path_).threads[0], "a\xef\xbf\xbd");
}

TEST_F(ChromeTrace, ForeignFilesAreRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("5"), HasSubstr("not a headrace trace"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not a headrace trace"));
  EXPECT_THAT(refusal("{}"), HasSubstr("not a headrace trace"));
  EXPECT_THAT(refusal(R"({"traceEvents":[{"ph":"B","ts":1}]})"), HasSubstr("not a headrace trace"));
  EXPECT_THAT(refusal(R"({"otherData":{"format":"other"},"traceEvents":[]})"), HasSubstr("not a headrace trace"));
}

TEST_F(ChromeTrace, UnknownVersionIsRefused) {
  EXPECT_THAT(refusal(R"({"otherData":{"format":"headrace-trace","version":2,"dropped":0},"traceEvents":[]})"),
              HasSubstr("version 2, this build reads 1"));
}

TEST_F(ChromeTrace, MissingFileIsNotFound) {
  try {
    read_chrome_trace(path_);
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
  }
}

TEST_F(ChromeTrace, EveryTruncationIsRefused) {
  write_chrome_trace(sample(), path_);
  const std::string whole = read_file(path_, 1 << 20);
  for (std::size_t size = 0; size + 2 < whole.size(); ++size) {  // The last two bytes are "}\n".
    ASSERT_NE(refusal(whole.substr(0, size)), "") << size;
  }
}

TEST_F(ChromeTrace, WrongEventsAreRefused) {
  const auto with_event = [](const std::string& event) {
    return R"({"otherData":{"format":"headrace-trace","version":1,"dropped":0,"duration_ns":9,"counters":{}},)"
           R"("traceEvents":[{"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"main"}},)" +
           event + "]}";
  };
  write_file(path_, with_event(R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":3}})"));
  EXPECT_EQ(read_chrome_trace(path_).events.size(), 1U);

  for (const char* event : {
           "5",
           "[]",
           R"({"ph":"B","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":1,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":-1,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":0,"ts":-1,"dur":2,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":0,"ts":1e300,"dur":2,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":0,"ts":1,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":0,"ts":1,"dur":0,"name":"a","cat":"b","args":{"value":3}})",
           R"({"ph":"C","tid":0,"ts":1,"name":"a","cat":"stack","args":{}})",
           R"({"ph":"C","tid":0,"ts":1,"name":"a","cat":"stack","args":{"x":1,"y":null}})",
           R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":5,"cat":"b","args":{"value":3}})",
           R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":{}})",
           R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":5})",
           R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":1.5}})",
           R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":18446744073709551615}})",
           R"({"ph":"X","tid":0,"ts":1,"dur":2,"name":"a","cat":"b","args":{"value":[[[[]]]]}})",
           R"({"ph":"M","tid":7,"name":"thread_name","args":{"name":"x"}})",
           R"({"ph":"C","tid":0,"ts":9,"name":"a","cat":"b","args":{"value":3}},)"
           R"({"ph":"C","tid":0,"ts":1,"name":"a","cat":"b","args":{"value":3}})",
       }) {
    EXPECT_NE(refusal(with_event(event)), "") << event;
  }
}

}  // namespace
}  // namespace headrace
