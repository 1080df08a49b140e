#include "insight/diagnose/detail/course_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "insight/diagnose/sample_report.h"
#include "insight/diagnose/text_count.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CourseReport, EachChangeHasABarWhereverItWasInForce) {
  Report report;
  report.course = Report::Course{1200, {{"fused optimizer", {{1, 100}, {601, 1200}}}, {"bf16", {{301, 301}}}}};
  const std::string html = detail::course_html(report);
  EXPECT_EQ(count(html, "<rect"), 3U);
  EXPECT_THAT(html, HasSubstr("x=\"0.00%\" y=\"16\" width=\"8.33%\""));    // The first tenth of 120 shares.
  EXPECT_THAT(html, HasSubstr("x=\"50.00%\" y=\"16\" width=\"50.00%\""));  // To the end.
  EXPECT_THAT(html, HasSubstr("x=\"25.00%\" y=\"48\" width=\"0.83%\""));   // One update is still to be seen.
  EXPECT_THAT(html, HasSubstr("58 % of the updates"));
  EXPECT_THAT(html, HasSubstr("<td class=\"number\">700</td>"));
}

TEST(CourseReport, TerminalHasAColumnForEachShareOfTheRun) {
  Report report;
  report.kind = Report::Kind::tuning;
  report.course = Report::Course{400, {{"fused optimizer", {{201, 400}}}}};
  const std::string text = report_text(report, 40, false);
  EXPECT_THAT(text, HasSubstr("In force over 400 updates"));
  EXPECT_THAT(text, HasSubstr("50 %  \u00b7\u00b7\u2588\u2588"));
}

TEST(CourseReport, ALongRunWithManySwitchesStaysSmall) {
  Report report;
  report.course = Report::Course{};
  report.course->updates = 10'000'000;
  for (int change = 0; change < 60; ++change) {
    Report::Course::Row row{"change " + std::to_string(change), {}};
    for (std::int64_t at = 1 + change; at < 10'000'000; at += 2000) row.updates.emplace_back(at, at + 900);
    report.course->rows.push_back(std::move(row));
  }
  const std::string html = detail::course_html(report);
  EXPECT_LT(html.size(), 150'000U);
  EXPECT_EQ(count(html, "<g>"), 24U);
  EXPECT_THAT(html, HasSubstr("36 further changes are left out."));
}

TEST(CourseReport, WithoutACourseNothingIsShown) {
  Report report;
  EXPECT_EQ(detail::course_html(report), "");
  report.course = Report::Course{};
  EXPECT_EQ(detail::course_html(report), "");
  EXPECT_THAT(report_text(report, 80, false), Not(HasSubstr("In force")));
}

TEST(LatencyOfLoading, IsOnThePageAndInTheTextAndSaysWhenItIsUnavailable) {
  Report report = sample_report();
  report.latency = Report::Latency{0.00031, 0.0124, 0.0473};
  const std::string known =
      "Half of the batches came 0.31 ms or more after they were asked for, 5 in 100 12.4 ms or more, 1 in 100 47.3 ms "
      "or more.";
  EXPECT_THAT(report_html(report), HasSubstr(known));
  EXPECT_THAT(report_text(report, 400, false), HasSubstr(known));
  report.latency.reset();
  EXPECT_THAT(report_html(report), HasSubstr("How long a batch takes to come when it is asked for is unavailable."));
}

}  // namespace
}  // namespace headrace
