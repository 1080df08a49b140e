#include "insight/compare/compare_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "insight/diagnose/text_count.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;

MetricVerdict metric(const std::string& name, MetricChange change, Interval interval) {
  return {.rule = rule_of(name, {}), .change = change, .old_value = 0.1, .new_value = 0.103, .interval = interval};
}

CompareReport report() {
  CompareReport report{.old_label = "main@1",
                       .new_label = "topic@2",
                       .command = "headrace compare main topic",
                       .written = "now",
                       .machine = {{"CPU", "one"}},
                       .verdict = {.pairs = 24}};
  report.verdict.metrics = {metric("step_p50_s", MetricChange::regressed, {0.031, 0.024, 0.039}),
                            metric("accuracy", MetricChange::equivalent, {0.001, -0.001, 0.002}),
                            metric("step_p99_s", MetricChange::inconclusive, {0.01, -0.05, 0.07})};
  report.verdict.metrics[2].pairs_needed = 120;
  report.verdict.stages = {{"forward", 0.05, 0.053, {0.03, 0.02, 0.04}, true}};
  report.pairs = {{0.03, 0.001, 0.0}};
  return report;
}

MetricDrift drift() {
  return {
      .rule = rule_of("step_p50_s", {}),
      .first_label = "a",
      .last_label = "k",
      .largest_label = "f",
      .builds = 10,
      .drift =
          {.first = 0, .last = 10, .effect = 0.0995, .low = 0.07, .high = 0.13, .largest = 5, .largest_effect = 0.012},
      .is_new = true};
}

TEST(CompareReport, TextSaysWhatIsWorseByHowMuchAndWhichStage) {
  const std::string text = compare_text(report());
  EXPECT_THAT(text, HasSubstr("NEW is worse than OLD: step_p50_s +3.1 % (95 %: +2.4 % to +3.9 %) (24 pairs)"));
  EXPECT_THAT(text, HasSubstr("100 ms"));
  EXPECT_THAT(text, HasSubstr("103 ms"));
  EXPECT_THAT(text, HasSubstr("inconclusive: about 120 pairs more would decide it"));
  EXPECT_THAT(text, HasSubstr("equivalent: within 0.005"));
  EXPECT_THAT(text, HasSubstr("changed: forward +3.0 % of a step (95 %: +2.0 % to +4.0 %), 50 ms to 53 ms"));
}

TEST(CompareReport, ConclusionNamesTheGravestFirst) {
  CompareReport found = report();
  found.verdict.metrics.push_back({.rule = rule_of("hit_rate", {}), .change = MetricChange::missing});
  EXPECT_EQ(conclusion(found), "NEW fails, as a result is missing: hit_rate");
  found.verdict.wrong_outputs = "they differ";
  EXPECT_EQ(conclusion(found), "NEW is wrong: they differ");
  CompareReport same = report();
  same.verdict.metrics = {metric("step_p50_s", MetricChange::equivalent, {0, -0.01, 0.01})};
  EXPECT_EQ(conclusion(same), "NEW and OLD are equivalent");
  EXPECT_FALSE(same.is_failure());
  same.verdict.metrics.push_back(metric("loss", MetricChange::inconclusive, {0, -0.1, 0.1}));
  EXPECT_THAT(conclusion(same), HasSubstr("not decided: loss"));
}

TEST(CompareReport, ADriftThatGoesOnIsAFailureAndAnOldOneIsNot) {
  CompareReport found = report();
  found.verdict.metrics.erase(found.verdict.metrics.begin());
  found.drifts = {drift()};
  EXPECT_TRUE(found.is_failure());
  EXPECT_THAT(conclusion(found), HasSubstr("over 10 builds, from a to k; most of it at f: +1.2 %"));
  found.drifts[0].is_new = false;
  EXPECT_FALSE(found.is_failure());
  found.drifts[0].is_new = true;
  found.drifts[0].drift.effect = -0.1;
  EXPECT_FALSE(found.is_failure()) << "it has become better";
}

TEST(CompareReport, JunitCountsItsCases) {
  CompareReport found = report();
  found.verdict.metrics.push_back({.rule = rule_of("hit_rate", {}), .change = MetricChange::missing});
  found.verdict.has_outputs = true;
  const std::string xml = compare_junit(found);
  EXPECT_THAT(xml, HasSubstr("tests=\"5\" failures=\"2\" errors=\"0\" skipped=\"1\""));
  EXPECT_EQ(count(xml, "<testcase "), 5U);
  EXPECT_EQ(count(xml, "<failure "), 2U);
  EXPECT_EQ(count(xml, "<skipped "), 1U);
  EXPECT_THAT(xml, HasSubstr("name=\"step_p50_s\"><failure message=\"regressed: +3.1 %"));
  EXPECT_THAT(xml, HasSubstr("missing: not told by every run, which counts as a failure"));
  EXPECT_EQ(count(compare_junit(report()), "name=\"outputs\""), 0U) << "nobody told any: that is no pass";
}

TEST(CompareReport, WhatWasNotComparedIsAnErrorInJunitAndAFailureInMarkdown) {
  EXPECT_THAT(failed_junit("a", "b", "no git"), HasSubstr("tests=\"1\" failures=\"0\" errors=\"1\""));
  EXPECT_THAT(failed_junit("a", "b", "no git"), HasSubstr("<error message=\"no git\"/>"));
  EXPECT_THAT(failed_markdown("a", "b", "no git"), HasSubstr("failed, nothing was compared"));
}

TEST(CompareReport, HostileNamesDoNotLeaveTheirPlace) {
  CompareReport found = report();
  found.new_label = "x|y<script>&\"`\x1b[31m\n";
  found.verdict.metrics[0].rule.name = "a\"/><b>|";
  const std::string xml = compare_junit(found), markdown = compare_markdown(found), text = compare_text(found);
  EXPECT_THAT(xml, Not(HasSubstr("<script>")));
  EXPECT_THAT(xml, HasSubstr("x|y&lt;script&gt;&amp;&quot;`?[31m "));
  EXPECT_THAT(xml, HasSubstr("name=\"a&quot;/&gt;&lt;b&gt;|\""));
  EXPECT_THAT(markdown, Not(HasSubstr("<script>")));
  EXPECT_THAT(markdown, HasSubstr("x\\|y&lt;script>"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(CompareReport, MarkdownHasARowAMetric) {
  const std::string markdown = compare_markdown(report());
  EXPECT_THAT(markdown, HasSubstr("### headrace compare: failed\n"));
  EXPECT_THAT(markdown,
              HasSubstr("| step\\_p50\\_s | 100 ms | 103 ms | +3.1 % (95 %: +2.4 % to +3.9 %) | regressed |"));
  EXPECT_THAT(markdown, HasSubstr("Changed part of a step: forward"));
  EXPECT_THAT(markdown, HasSubstr("Reproduce: headrace compare main topic"));
}

TEST(CompareReport, StagesOfOneFurtherPairAreToldAsSuch) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CompareReport found = report();
  EXPECT_EQ(compare_json(found)["stages_of"], "pairs");
  found.verdict.stages = {{"forward", 0.05, 0.053, {0.03, -infinity, infinity}, false}};
  found.verdict.stages_are_of_one_pair = true;
  EXPECT_THAT(compare_text(found),
              HasSubstr("Parts of a step, in one further pair:\n           forward +3.0 % of a step "
                        "(too few pairs for an interval)"));
  EXPECT_THAT(compare_markdown(found),
              HasSubstr("Largest change of a part of a step, in one further pair: forward +3.0 %"));
  EXPECT_EQ(compare_json(found)["stages_of"], "one further pair");
  EXPECT_TRUE(compare_json(found)["stages"][0]["share"]["low"].is_null());
  found.verdict.stages.clear();
  EXPECT_TRUE(compare_json(found)["stages_of"].is_null());
}

TEST(CompareReport, ThePageHasEachMetricWithItsPairsOnItsOwnScale) {
  CompareReport found = report();
  found.pairs.push_back({-0.0101, -0.002, 0.0});
  found.verdict.metrics.push_back({.rule = rule_of("hit_rate", {}), .change = MetricChange::missing});
  found.drifts = {drift()};
  found.verdict.stages_are_of_one_pair = true;
  const std::string page = compare_html(found);
  EXPECT_THAT(page, HasSubstr("<h1>NEW fails, as a result is missing</h1>\n<p class=\"lede\">hit_rate</p>"));
  EXPECT_THAT(page, HasSubstr("Compared in 24 pairs."));
  EXPECT_THAT(page, HasSubstr("History: step_p50_s"));
  EXPECT_THAT(page, HasSubstr("<h3>step_p50_s <span class=\"tag refused\">\u2715 regressed</span></h3>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"number\">1</td><td class=\"number\">+3.0\u00a0%</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"number\">2</td><td class=\"number\">\u22121.0\u00a0%</td>"));
  // Of accuracy more is better: an effect above 0 is a loss.
  EXPECT_THAT(page, HasSubstr("<td class=\"number\">1</td><td class=\"number\">\u22120.001</td>"));
  EXPECT_EQ(count(page, "class=\"pairs-chart\""), 3U) << "of what is missing there are none";
  EXPECT_THAT(page, HasSubstr("Of one further pair"));
  EXPECT_THAT(page, HasSubstr("<b>Changed:</b> forward +3.0\u00a0% of a step"));
  EXPECT_THAT(page, HasSubstr("headrace</span> <span>compare</span> <span>main"));
}

TEST(CompareReport, ThePageOfStoredRunsHasNoPairsAndOneOfNoVerdictSaysSo) {
  CompareReport found = report();
  found.verdict.pairs = 0;
  found.pairs.clear();
  EXPECT_EQ(count(compare_html(found), "class=\"pairs-chart\""), 0U);
  EXPECT_THAT(compare_html(found), HasSubstr("Compared in stored runs."));
  const std::string page = failed_html("a", "<b>", "no git");
  EXPECT_THAT(page, HasSubstr("<h1>Nothing was compared</h1>\n<p class=\"lede\">no git</p>"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;"));
  EXPECT_THAT(page, HasSubstr("No metric was compared."));
}

TEST(CompareReport, JsonHasTheVerdictAndThePairs) {
  CompareReport found = report();
  found.drifts = {drift()};
  found.verdict.metrics[0].interval->high = std::numeric_limits<double>::infinity();
  const auto document = compare_json(found);
  EXPECT_EQ(document["format"], "headrace-compare");
  EXPECT_EQ(document["version"], 1);
  EXPECT_EQ(document["failure"], true);
  EXPECT_EQ(document["metrics"][0]["verdict"], "regressed");
  EXPECT_TRUE(document["metrics"][0]["change"]["high"].is_null());
  EXPECT_EQ(document["metrics"][2]["pairs_needed"], 120);
  EXPECT_EQ(document["stages"][0]["name"], "forward");
  EXPECT_EQ(document["recorded"]["metrics"][1], "accuracy");
  EXPECT_EQ(document["recorded"]["effects"][0][0], 0.03);
  EXPECT_EQ(document["drifts"][0]["largest_at"], "f");
  EXPECT_EQ(document["outputs_compared"], false);
}

}  // namespace
}  // namespace headrace
