#include "insight/diagnose/comparison_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "insight/diagnose/text_count.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;

ComparisonPage::Metric metric(const std::string& name, const std::string& verdict, std::size_t pairs) {
  ComparisonPage::Metric metric;
  metric.name = name;
  metric.old_value = "100 ms";
  metric.new_value = "103 ms";
  metric.verdict = verdict;
  metric.sentence = verdict;
  metric.change = "+3.0 % (95 %: +2.0 % to +4.0 %)";
  metric.middle = 0.03;
  metric.low = 0.02;
  metric.high = 0.04;
  metric.pairs.assign(pairs, 0.03);
  return metric;
}

ComparisonPage page_of(std::vector<ComparisonPage::Metric> metrics) {
  ComparisonPage page;
  page.old_label = "main@1";
  page.new_label = "topic@2";
  page.verdict = "NEW is worse than OLD";
  page.basis = "24 pairs";
  page.metrics = std::move(metrics);
  page.environment = {{"CPU", "one"}};
  page.command = "headrace compare main topic";
  page.written = "now";
  return page;
}

TEST(ComparisonPage, TheHeadingIsTheVerdictAndItsFiguresStandBelow) {
  ComparisonPage page = page_of({metric("peak_memory_bytes", "inconclusive", 2)});
  page.verdict = "not decided: peak_memory_bytes -1.0 % (95 %: -5.3 % to +4.1 %)";
  const std::string html = comparison_html(page);
  EXPECT_THAT(html, HasSubstr("<h1>Not decided</h1>\n<p class=\"lede\">peak_memory_bytes \u22121.0"));
  page.verdict = "Nothing was compared: rev-parse";
  EXPECT_THAT(comparison_html(page), HasSubstr("<p class=\"lede\">rev-parse</p>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"name\">peak_<wbr>memory_<wbr>bytes</span>"));
}

TEST(ComparisonPage, EachPairIsADotOverTheIntervalAndTheTolerance) {
  const std::string html = comparison_html(page_of({metric("step_p50_s", "regressed", 12)}));
  EXPECT_EQ(count(html, "<circle "), 12);
  EXPECT_EQ(count(html, "class=\"band\""), 1);
  EXPECT_EQ(count(html, "class=\"limit\""), 2);
  EXPECT_EQ(count(html, "class=\"zero\""), 1);
  EXPECT_THAT(html, HasSubstr(">The pairs of step_p50_s</title>"));
  EXPECT_THAT(html, HasSubstr("Headrace comparison of <b>main@1</b> (OLD) with <b>topic@2</b> (NEW)"));
  EXPECT_THAT(html, HasSubstr("Compared in 24 pairs."));
}

TEST(ComparisonPage, WhatIsWorseOrOpenComesBeforeWhatIsFine) {
  const std::string html = comparison_html(
      page_of({metric("fine", "equivalent", 1), metric("open", "inconclusive", 1), metric("worse", "regressed", 1)}));
  EXPECT_LT(html.find(">worse<"), html.find(">open<"));
  EXPECT_LT(html.find(">open<"), html.find(">fine<"));
}

TEST(ComparisonPage, AnIntervalOrAPairThatIsUnknownIsNotDrawn) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  ComparisonPage::Metric one = metric("a", "inconclusive", 3);
  one.low = -infinity;
  one.high = infinity;
  one.pairs[1] = infinity;
  const std::string html = comparison_html(page_of({one}));
  EXPECT_EQ(count(html, "class=\"band\""), 0);
  EXPECT_EQ(count(html, "<circle "), 2);
  EXPECT_THAT(html, HasSubstr("not finite"));
  one.middle = infinity;
  EXPECT_EQ(count(comparison_html(page_of({one})), "<svg"), 0);
}

TEST(ComparisonPage, WithoutMetricsItSaysSo) {
  const std::string html = comparison_html({});
  EXPECT_THAT(html, HasSubstr("No verdict"));
  EXPECT_THAT(html, HasSubstr("No metric was compared."));
  EXPECT_THAT(html, HasSubstr("The command is unavailable."));
}

TEST(ComparisonPage, StaysBelowItsBoundAndCountsWhatIsLeftOut) {
  std::vector<ComparisonPage::Metric> metrics;
  for (int i = 0; i < 300; ++i) metrics.push_back(metric(std::string(5'000, '"'), "inconclusive", 10'000));
  ComparisonPage page = page_of(std::move(metrics));
  page.notes.assign(500, std::string(100, '<'));
  page.stages.assign(500, {std::string(100, '&'), true});
  const std::string html = comparison_html(page);
  EXPECT_LT(html.size(), 1'500'000);
  EXPECT_EQ(count(html, "class=\"pairs-chart\""), 20);
  EXPECT_THAT(html, HasSubstr("200 of 10000 pairs are drawn."));
  EXPECT_THAT(html, HasSubstr("The pairs of 280 more metrics are left out."));
  EXPECT_THAT(html, HasSubstr("200 more metrics are left out."));
  EXPECT_THAT(html, HasSubstr("460 more notes."));
  EXPECT_THAT(html, HasSubstr("476 more parts are left out."));
}

TEST(ComparisonPage, HostileTextsStayTexts) {
  const std::string hostile = "</h1><script>alert(1)</script>\x1b[31m\" onload=\"x";
  ComparisonPage::Metric one = metric(hostile, hostile, 2);
  one.old_value = one.sentence = one.change = hostile;
  ComparisonPage page = page_of({one});
  page.old_label = page.new_label = page.verdict = page.basis = page.command = page.written = page.stages_note =
      hostile;
  page.notes = {hostile};
  page.stages = {{hostile, true}};
  page.environment = {{hostile, hostile}};
  const std::string html = comparison_html(page);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("\" onload=\"")));
  EXPECT_THAT(html, Not(HasSubstr("\x1b")));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
}

}  // namespace
}  // namespace headrace
