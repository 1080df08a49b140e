#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/monitor.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

MonitorOptions quiet() {
  MonitorOptions options;
  options.system_interval = std::chrono::nanoseconds(0);
  options.write_interval = std::chrono::milliseconds(1);
  return options;
}

// Notes writes and events in their order; may refuse events, or throw at them.
class Notes final : public MonitorSink {
 public:
  enum class Answer { takes, loses, throws };
  explicit Notes(std::vector<std::string>& notes, Answer answer = Answer::takes) : notes_(notes), answer_(answer) {}
  Delivery write(std::span<const MonitorRecord> records) override {
    for (const MonitorRecord& record : records) notes_.push_back("step " + std::to_string(record.step));
    return {};
  }
  Delivery tell(const MonitorEvent& event) override {
    if (answer_ == Answer::throws) throw Error(ErrorCode::io, "it is broken");
    if (answer_ == Answer::loses) return {1, "no room"};
    notes_.push_back(event.sentence);
    return {};
  }

 private:
  std::vector<std::string>& notes_;
  const Answer answer_;
};

MonitorEvent note(const std::string& sentence) {
  MonitorEvent event;
  event.name = "note";
  event.sentence = sentence;
  return event;
}

const SinkStatus& sink_named(const MonitorStatus& status, const std::string& key) {
  for (const SinkStatus& sink : status.sinks) {
    if (sink.applied.key == key) return sink;
  }
  ADD_FAILURE() << "no sink " << key;
  return status.sinks.at(0);
}

TEST(MonitorEvents, ASinkIsToldWhichSettingsAreApplied) {
  std::vector<std::string> notes;
  Monitor monitor(quiet());
  monitor.add_sink("notes", std::make_unique<Notes>(notes));
  monitor.tell(event_of(Applied{"data.cache", "decoded", "decoded", ""}));
  monitor.tell(event_of(Applied{"optimizer.fused", "true", "false", "not on this device"}));
  monitor.tell(event_of(Applied{"optimizer.fused", "auto", "true", ""}));
  ASSERT_TRUE(monitor.flush());
  EXPECT_THAT(notes, ElementsAre("data.cache: applied decoded",
                                 "optimizer.fused: requested true, applied false: not on this device",
                                 "optimizer.fused: applied true"));
  const std::vector<MonitorEvent> events = monitor.take_events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].level, EventLevel::info);
  EXPECT_EQ(events[1].level, EventLevel::warning);
  EXPECT_EQ(events[2].level, EventLevel::info);
  EXPECT_EQ(events[1].name, "setting");
  EXPECT_EQ(events[1].fields.at(2).name, "applied");
  EXPECT_EQ(std::get<std::string>(events[1].fields.at(2).value), "false");
  EXPECT_GT(events[1].wall_ns, 0);
  EXPECT_EQ(sink_named(monitor.status(), "notes").events, 2);
}

TEST(MonitorEvents, ASinkThatIsAddedLaterGetsWhatWasToldBeforeOnce) {
  std::vector<std::string> first, second;
  Monitor monitor(quiet());
  monitor.add_sink("first", std::make_unique<Notes>(first));
  monitor.tell(note("one"));
  ASSERT_TRUE(monitor.flush());
  monitor.take_events();
  monitor.add_sink("second", std::make_unique<Notes>(second));
  monitor.tell(note("two"));
  ASSERT_TRUE(monitor.flush());
  EXPECT_THAT(first, ElementsAre("one", "two"));
  EXPECT_THAT(second, ElementsAre("one", "two"));
  EXPECT_EQ(monitor.take_events().size(), 1U);
}

TEST(MonitorEvents, ASinkThatIsAddedLaterWaitsForNoFurtherEvent) {
  std::vector<std::string> first, second;
  MonitorOptions options = quiet();
  options.write_interval = std::chrono::hours(1);
  Monitor monitor(options);
  monitor.add_sink("first", std::make_unique<Notes>(first));
  monitor.tell(note("one"));
  ASSERT_TRUE(monitor.flush());
  monitor.add_sink("second", std::make_unique<Notes>(second));
  ASSERT_TRUE(monitor.flush());
  EXPECT_THAT(second, ElementsAre("one"));
  EXPECT_THAT(first, ElementsAre("one"));
}

TEST(MonitorEvents, AnAlertIsToldBehindTheRecordThatRaisedIt) {
  MonitorOptions options = quiet();
  AlertRule rule;
  rule.name = "loss";
  rule.metric = "loss";
  rule.kind = AlertKind::above;
  rule.limit = 1;
  options.alerts = {rule};
  std::vector<std::string> notes;
  Monitor monitor(options);
  monitor.add_sink("notes", std::make_unique<Notes>(notes));
  monitor.record(7, {{"loss", 2.0}});
  ASSERT_TRUE(monitor.flush());
  EXPECT_THAT(notes, ElementsAre("step 7", HasSubstr("loss is 2, above 1")));
}

TEST(MonitorEvents, ASinkThatFailsIsAnEventForTheOthersAndOnlyOnce) {
  std::vector<std::string> notes, lost;
  {
    Monitor monitor(quiet());
    monitor.add_sink("broken", std::make_unique<Notes>(lost, Notes::Answer::throws));
    monitor.add_sink("full", std::make_unique<Notes>(lost, Notes::Answer::loses));
    monitor.add_sink("notes", std::make_unique<Notes>(notes));
    monitor.tell(note("one"));
    ASSERT_TRUE(monitor.flush());
    monitor.tell(note("two"));
    ASSERT_TRUE(monitor.flush());
    const MonitorStatus status = monitor.status();
    EXPECT_EQ(sink_named(status, "broken").applied.applied, "off");
    EXPECT_EQ(sink_named(status, "broken").lost, 1);
    EXPECT_EQ(sink_named(status, "full").applied.applied, "full");
    EXPECT_GE(sink_named(status, "full").lost, 2);
    EXPECT_EQ(sink_named(status, "full").events, 0);
  }
  EXPECT_TRUE(lost.empty());
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "monitor: broken: it is broken; the run goes on"), 1);
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "monitor: full: no room; the run goes on"), 1);
}

TEST(MonitorEvents, TheNewestThousandAreKeptAndWhatASinkMissedIsCounted) {
  std::vector<std::string> notes;
  MonitorOptions options = quiet();
  options.write_interval = std::chrono::hours(1);
  Monitor monitor(options);
  monitor.add_sink("notes", std::make_unique<Notes>(notes));
  monitor.tell(note("first"));
  ASSERT_TRUE(monitor.flush());  // From here on the thread sleeps until the next flush().
  for (int i = 0; i < 1'003; ++i) monitor.tell(note("event " + std::to_string(i)));
  ASSERT_TRUE(monitor.flush());
  ASSERT_EQ(notes.size(), 1'001U);
  EXPECT_EQ(notes[1], "event 3");
  EXPECT_EQ(sink_named(monitor.status(), "notes").lost, 3);
  EXPECT_EQ(monitor.take_events().size(), 1'000U);
}

TEST(MonitorEvents, AFileHasThemAsLinesOfJson) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "events.jsonl";
  MonitorOptions options = quiet();
  options.events = path.native();
  for (int run = 0; run < 2; ++run) {  // The second one goes on in the file.
    Monitor monitor(options);
    MonitorEvent event = note("a \xff in \"it\"");
    event.step = 4;
    event.fields = {{"share", std::numeric_limits<double>::quiet_NaN()}, {"count", std::int64_t{3}}, {"on", true}};
    monitor.tell(event);
  }
  std::ifstream lines(path);
  std::vector<nlohmann::json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0]["event"], "setting");
  EXPECT_EQ(events[0]["fields"]["key"], "monitor.events");
  EXPECT_EQ(events[0]["step"], nullptr);
  EXPECT_EQ(events[3]["sentence"], "a \xEF\xBF\xBD in \"it\"");
  EXPECT_EQ(events[3]["step"], 4);
  EXPECT_EQ(events[3]["fields"], (nlohmann::json{{"share", nullptr}, {"count", 3}, {"on", true}}));
}

TEST(MonitorEvents, WhatCannotBeOpenedIsOneWithItsReason) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "metrics.csv") << "somebody else's\n";
  MonitorOptions options = quiet();
  options.events = (folder.path() / "metrics.csv").native();
  Monitor monitor(options);
  const std::vector<MonitorEvent> events = monitor.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].name, "sink");
  EXPECT_EQ(events[0].level, EventLevel::warning);
  EXPECT_THAT(events[0].sentence, HasSubstr("metrics.csv"));
  EXPECT_EQ(std::get<std::string>(events[0].fields.at(2).value), "off");
}

TEST(MonitorEvents, ANamelessOneAndAnUnknownLevelAreRefused) {
  Monitor monitor(quiet());
  EXPECT_THROW(monitor.tell(note("")), Error);
  MonitorEvent event = note("x");
  event.name = "";
  EXPECT_THROW(monitor.tell(event), Error);
  EXPECT_EQ(event_level_of("warning"), EventLevel::warning);
  EXPECT_THROW(event_level_of("loud"), Error);
}

}  // namespace
}  // namespace headrace
