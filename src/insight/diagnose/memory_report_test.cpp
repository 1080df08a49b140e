#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/report.h>

#include <nlohmann/json.hpp>
#include <string>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/memory_shares.h"
#include "insight/diagnose/json.h"
#include "insight/diagnose/sample_report.h"

namespace headrace {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kMegabyte = 1'000'000;

// 10,000 moments of 100 MB, one of which has a spike of one class.
MemoryTimeline spike_at(std::size_t moment) {
  MemoryTimeline timeline;
  timeline.classes = {{"batches", {}}};
  for (std::size_t i = 0; i < 10'000; ++i) {
    const std::int64_t spike = i == moment ? 900 * kMegabyte : 0;
    timeline.at_ns.push_back(static_cast<std::int64_t>(i) * 50'000'000);
    timeline.resident.push_back(100 * kMegabyte + spike);
    timeline.classes[0].bytes.push_back(10 * kMegabyte + spike);
  }
  return timeline;
}

TEST(MemoryReport, ASpikeOfOneMomentIsInTheSeriesAndInThePeak) {
  const nlohmann::ordered_json document = to_json(spike_at(7'777));
  EXPECT_EQ(document["peak"]["bytes"], 1000 * kMegabyte);
  EXPECT_DOUBLE_EQ(document["peak"]["at_s"], 7'777 * 0.05);
  EXPECT_EQ(document["at_s"].size(), 256U);
  const auto& batches = document["classes"]["batches"];
  EXPECT_EQ(batches["at_peak"], 910 * kMegabyte);
  EXPECT_EQ(batches["mean"], 10 * kMegabyte + 900 * kMegabyte / 10'000);
  EXPECT_EQ(batches["last"], 10 * kMegabyte);
  const auto place = 7'777 * std::size_t{256} / 10'000;
  EXPECT_EQ(document["resident"][place], 1000 * kMegabyte);
  EXPECT_EQ(batches["values"][place], 910 * kMegabyte);
  EXPECT_EQ(document["classes"]["other"]["values"][place], 90 * kMegabyte);
  EXPECT_DOUBLE_EQ(document["at_s"][place], 7'777 * 0.05);
}

TEST(MemoryReport, AClassThatNobodyCountedIsUnavailableAndNotZero) {
  const nlohmann::ordered_json document = to_json(sample_memory());
  EXPECT_TRUE(document["classes"]["activations"].is_null());
  EXPECT_EQ(document["classes"]["parameters"]["last"], 45 * kMegabyte);
  Report report = sample_report();
  EXPECT_THAT(report_text(report, 80, false), HasSubstr("\n  activations   unavailable\n"));
  EXPECT_THAT(report_html(report), HasSubstr("<th scope=\"row\">activations</th><td class=\"number\"><span "
                                             "class=\"unavailable\">unavailable</span></td>"));
}

TEST(MemoryReport, WithoutAMomentEverythingIsUnavailable) {
  EXPECT_TRUE(to_json(MemoryTimeline{}).is_null());
  EXPECT_THAT(report_text(Report{}, 80, false), HasSubstr("Memory\n  unavailable\n"));
  EXPECT_THAT(report_html(Report{}), HasSubstr("Memory over time</h2>\n<p>Unavailable.</p>"));
}

TEST(MemoryReport, ShowsWhatTheTimelineHolds) {
  // The peak is at moment 58: 45 + 45 + 90 + 80 + 200 + 300 MB.
  for (const std::string& text : {report_text(sample_report(), 80, false), report_html(sample_report())}) {
    EXPECT_THAT(text, HasSubstr("760 MB"));
    EXPECT_THAT(text, HasSubstr("20.0 s"));
    for (const char* figure : {"45 MB", "90 MB", "80 MB", "200 MB", "300 MB"}) EXPECT_THAT(text, HasSubstr(figure));
  }
}

TEST(MemoryReport, AreasOfAChartFillItFromBelowToTheMostThatWasHeld) {
  const std::string html = report_html(sample_report());
  // Parameters lie on the ground, "other" reaches the top of the plot where most was held.
  EXPECT_THAT(html, HasSubstr("<path class=\"area-2\" d=\"M0.00 94.08L"));
  EXPECT_THAT(html, HasSubstr(" 0.00L"));
  EXPECT_THAT(html, HasSubstr("other 300 MB at the peak; in the order of the areas, from below.</desc>"));
}

TEST(MemoryReport, OneMomentMakesATableWithoutAChart) {
  Report report = sample_report();
  report.memory = detail::condensed(sample_memory(), 1);
  const std::string html = report_html(report);
  EXPECT_THAT(html, HasSubstr("memory-table"));
  EXPECT_THAT(html, testing::Not(HasSubstr("<svg class=\"memory\"")));
}

TEST(MemoryReport, CondensedKeepsTheLargestOfEachShareOfTheTime) {
  MemoryTimeline timeline;
  for (const std::int64_t value : {1, 5, 2, 2, 9, 1, 4}) {
    timeline.at_ns.push_back(static_cast<std::int64_t>(timeline.at_ns.size()));
    timeline.resident.push_back(value);
  }
  EXPECT_THAT(detail::condensed(timeline, 3).resident, testing::ElementsAre(5, 2, 9));
  EXPECT_THAT(detail::condensed(timeline, 3).at_ns, testing::ElementsAre(1, 2, 4));
  EXPECT_THAT(detail::condensed(timeline, 7).resident, testing::ElementsAreArray(timeline.resident));
  EXPECT_THAT(detail::condensed(timeline, 100).resident, testing::ElementsAreArray(timeline.resident));
}

TEST(ReportKinds, AProfileAndATrainingShowNothingThatTheyDoNotHave) {
  Report report = sample_report();
  report.kind = Report::Kind::profile;
  for (const std::string& text : {report_text(report, 80, false), report_html(report)}) {
    EXPECT_THAT(text, HasSubstr("3,104"));
    EXPECT_THAT(text, HasSubstr("760 MB"));
    EXPECT_THAT(text, HasSubstr("Where the time of a step goes"));
    for (const char* other :
         {"peedup", "None was tried", "What was tried", "4,719", ">Before", ">After", "  before", "after:  "}) {
      EXPECT_THAT(text, testing::Not(HasSubstr(other)));
    }
  }
  report.kind = Report::Kind::training;
  for (const std::string& text : {report_text(report, 80, false), report_html(report)}) {
    EXPECT_THAT(text, HasSubstr("0.9142"));
    EXPECT_THAT(text, HasSubstr("760 MB"));
    for (const char* other : {"peedup", "What was tried", "Where the time of a step goes"}) {
      EXPECT_THAT(text, testing::Not(HasSubstr(other)));
    }
  }
}

TEST(Figures, BytesAndSecondsAreRoundedForPeople) {
  EXPECT_EQ(detail::bytes_text(999), "999 B");
  EXPECT_EQ(detail::bytes_text(4'300), "4.3 kB");
  EXPECT_EQ(detail::bytes_text(412 * kMegabyte), "412 MB");
  EXPECT_EQ(detail::bytes_text(1'234 * kMegabyte), "1.23 GB");
  EXPECT_EQ(detail::seconds_text(0.5), "0.50 s");
  EXPECT_EQ(detail::seconds_text(42.31), "42.3 s");
  EXPECT_EQ(detail::seconds_text(245), "4 min 05 s");
  EXPECT_EQ(detail::seconds_text(3'720), "1 h 02 min");
}

}  // namespace
}  // namespace headrace
