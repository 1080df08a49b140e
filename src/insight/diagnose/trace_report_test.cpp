#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/report.h>

#include <algorithm>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/sample_report.h"
#include "insight/diagnose/text_count.h"

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// From its heading to the next part of the page.
std::string section(const std::string& html, const std::string& id) {
  const std::size_t begin = html.find("<section aria-labelledby=\"h-" + id + "\">");
  return begin == std::string::npos ? "" : html.substr(begin, html.find("</section>", begin) - begin);
}

Report profile() {
  Report report;
  report.kind = Report::Kind::profile;
  show_trace(report, sample_trace(), "Now");
  return report;
}

TEST(TraceReport, TellsThePercentilesOfTheStepsAndOfEachPartThatTookTime) {
  // Of 40 steps 8 each take 20, 21, 22, 23, 24 ms; nothing is transferred.
  const std::string html = section(report_html(profile()), "steps");
  EXPECT_THAT(html, HasSubstr("40 steps: half of them take at most 22.0 ms, 5 in 100 more than 24.0 ms, 1 in 100 more "
                              "than 24.0 ms."));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">backward</th><td class=\"number\" data-label=\"Times\">40</td>"));
  EXPECT_THAT(html, HasSubstr("data-label=\"p50\">8.00 ms</td>"));
  EXPECT_THAT(html, Not(HasSubstr("transfer")));
  const std::string text = report_text(profile(), 80, false);
  EXPECT_THAT(text, HasSubstr("\n  step         22.0 ms  24.0 ms  24.0 ms\n"));
  EXPECT_THAT(text, HasSubstr("\n  optimizer    6.00 ms  8.00 ms  8.00 ms\n"));
}

TEST(TraceReport, ShowsTheMiddleStepOverTimeWithABarWhereEachSpanRan) {
  const std::string html = section(report_html(profile()), "step");
  EXPECT_THAT(html, HasSubstr("Step 23 of 40, the one of the middle duration, takes 22.0 ms."));
  // backward runs from 7 to 15 of 22 ms.
  EXPECT_THAT(html, HasSubstr("<rect class=\"part part-3\" x=\"31.82%\" y=\"200\" width=\"36.36%\" height=\"10\"/>"));
  EXPECT_THAT(html, HasSubstr("<rect class=\"part span-operator\""));
  EXPECT_THAT(html, HasSubstr("<rect class=\"part span-wait\""));
  EXPECT_EQ(count(html, "class=\"thread\""), 2U);
  EXPECT_THAT(html, HasSubstr("backward from 7.00 ms to 15.0 ms; "));
  // 49 columns: 15 for backward begin after 31.8 % and end at 68.2 %.
  EXPECT_THAT(report_text(profile(), 80, false),
              testing::ContainsRegex("\n  backward            8.00 ms  (·){15}(█){19}"
                                     "(·){15}\n"));
}

TEST(TraceReport, DrawsAFlameGraphOfEachThreadWithTheLongestSpansBesideIt) {
  const std::string html = section(report_html(profile()), "flame");
  EXPECT_EQ(count(html, "<svg class=\"flame\""), 2U);
  EXPECT_THAT(html, HasSubstr("<p>main: 880 ms in spans</p>"));
  EXPECT_THAT(html, HasSubstr("<details><summary>loader 0: 640 ms in spans</summary>"));
  // backward: 320 of 880 ms, below the thread and its steps, on the left.
  EXPECT_THAT(html, HasSubstr("<svg x=\"0.000%\" y=\"40\" width=\"36.364%\" height=\"19\"><title>backward: 36 %, "));
  EXPECT_THAT(html, HasSubstr("<text x=\"4\" y=\"14\">aten::linear</text>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">aten::addmm</th><td class=\"number\" data-label=\"Times\">40</td>"));
  const std::string text = report_text(profile(), 80, false);
  EXPECT_THAT(text, testing::ContainsRegex("\n  main +100 % +880 ms\n    step +100 % +880 ms\n      backward +36 %"));
}

TEST(TraceReport, OfATuningShowsBothRecordingsUnderTheirLabels) {
  Report report;
  show_trace(report, sample_trace(), "Before");
  show_trace(report, sample_trace(10), "After");
  const std::string html = report_html(report);
  for (const char* id : {"steps", "step", "flame"}) {
    EXPECT_EQ(count(section(html, id), "<h3>Before</h3>"), 1U) << id;
    EXPECT_EQ(count(section(html, id), "<h3>After</h3>"), 1U) << id;
  }
  const std::string text = report_text(report, 80, false);
  EXPECT_THAT(text, HasSubstr("\nOne step over time: Before\n"));
  EXPECT_THAT(text, HasSubstr("\nStacks by time: After\n"));
}

TEST(TraceReport, SaysThatNoStepsWereRecordedWhereSomebodyCouldHave) {
  EXPECT_THAT(report_html(Report{}), HasSubstr("the flame graph: no steps were recorded."));
  EXPECT_THAT(report_text(Report{}, 80, false), HasSubstr("How long steps take\n  unavailable\n"));
  Report live, training;
  live.live = true;
  training.kind = Report::Kind::training;
  for (const Report& report : {live, training}) {
    EXPECT_THAT(report_html(report), Not(HasSubstr("How long steps take")));
    EXPECT_THAT(report_text(report, 80, false), Not(HasSubstr("How long steps take")));
  }
}

TEST(TraceReport, TellsWhatFullBuffersLostAndWhatItLeavesOut) {
  Report report = profile();
  report.traces[0].dropped = 12'345;
  report.traces[0].flame.frames_left_out = 1'000;
  report.traces[0].flame.threads_left_out = 3;
  report.traces[0].waterfall.rows_left_out = 7;
  const std::string html = report_html(report);
  EXPECT_THAT(html, HasSubstr("12,345 events are missing"));
  EXPECT_THAT(html, HasSubstr("1,000 stacks are too short to be seen, or too deep, and are left out. 3 threads"));
  EXPECT_THAT(html, HasSubstr("7 further names"));
  EXPECT_THAT(report_text(report, 80, false), HasSubstr("12,345 events are missing"));
  EXPECT_THAT(report_html(profile()), Not(HasSubstr("left out")));
}

TEST(TraceReport, AStepWithNothingInItAndOneOfASumAloneAreTold) {
  Report report;
  TraceRecord record;
  record.names = {{"step", "step"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 1'000'000, 0}};
  show_trace(report, record, "Now");
  EXPECT_THAT(report_html(report), HasSubstr("<p>Nothing was recorded within it.</p>"));
  EXPECT_THAT(report_html(report), HasSubstr("1 step: half"));
  report.traces[0].split.step_s.clear();
  EXPECT_THAT(report_html(report), HasSubstr("Of these steps the sums alone are known."));
  EXPECT_FALSE(report_text(report, 40, false).empty());
}

std::vector<double> milliseconds_in(const std::string& text) {
  const std::regex figure("([0-9.]+) ms");
  std::vector<double> found;
  for (std::sregex_iterator it(text.begin(), text.end(), figure), end; it != end; ++it) {
    found.push_back(std::stod((*it)[1]));
  }
  return found;
}

TEST(TraceReport, EveryTimeInItMovesWithTheWorkload) {
  TraceRecord slower = sample_trace(5);
  for (TraceEvent& event : slower.events) {
    event.begin_ns *= 2;
    event.end_ns *= 2;
  }
  Report now, then;
  now.kind = then.kind = Report::Kind::profile;
  show_trace(now, sample_trace(5), "Now");
  show_trace(then, slower, "Now");
  for (const char* part : {"steps", "step", "flame"}) {
    const std::vector<double> before = milliseconds_in(section(report_html(now), part));
    const std::vector<double> after = milliseconds_in(section(report_html(then), part));
    ASSERT_EQ(before.size(), after.size());
    EXPECT_GT(before.size(), 10U);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_NEAR(after[i], 2 * before[i], 0.011 * before[i] + 0.06) << part << ' ' << i;  // Of rounding.
    }
  }
}

TEST(ResourceReport, TellsWhatEachLossCostsWhatGoesWithoutItAndHowSureThatIs) {
  const Report report = sample_report();
  const std::string html = section(report_html(report), "resources"), text = report_text(report, 400, false);
  EXPECT_THAT(html, HasSubstr("<p>Decoding images runs out first.</p>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"name\">decode</span><span class=\"detail\">3.10 ms of a step</span>"));
  EXPECT_THAT(html, HasSubstr("<b>+45.0\u00a0%</b> <small>[+41.0\u00a0%, +49.0\u00a0%]</small>"));
  EXPECT_THAT(html, HasSubstr("Load with more workers. <code>data.num_workers</code>"));
  EXPECT_EQ(count(html, "class=\"whisker\""), 2U);
  EXPECT_THAT(text, HasSubstr("\nWhat runs out first\n  Decoding images runs out first.\n"));
  EXPECT_THAT(
      text, HasSubstr("\n  - decode: 3.10 ms of a step; without it +45.0 % [+41.0 %, +49.0 %]; 97 % sure, confirmed"));
  EXPECT_THAT(text, HasSubstr("80 % sure, not confirmed by a run without it"));
  for (const std::string& page : {html, text}) {
    EXPECT_THAT(page, testing::ContainsRegex("reach at least 62.{1,2}% of this machine"));
    EXPECT_THAT(page, HasSubstr("Ranks cannot be compared: there is one."));
  }
}

TEST(ResourceReport, OfAHealthyLoopIsItsSentenceAndWithoutAVerdictNothing) {
  Report report;
  EXPECT_EQ(section(report_html(report), "resources"), "");
  report.resources = ResourceVerdict{};
  report.resources->healthy = true;
  report.resources->sentence = "Nothing is wrong.";
  EXPECT_THAT(section(report_html(report), "resources"), HasSubstr("Nothing is wrong."));
  EXPECT_THAT(section(report_html(report), "resources"), Not(HasSubstr("<table")));
}

TEST(ResourceReport, OfAVerdictThatIsNotConfirmedSaysHowToConfirmIt) {
  Report report = sample_report();
  report.resources->to_confirm = "To confirm it: run it without the data.";
  EXPECT_THAT(section(report_html(report), "resources"), HasSubstr("<p>To confirm it: run it without the data.</p>"));
  EXPECT_THAT(report_text(report, 400, false),
              HasSubstr("\n  Decoding images runs out first.\n  To confirm it: run it without the data.\n"));
}

TEST(ResourceReport, OfAProfileTheDiagnosisStandsBesideAVerdictThatSaysSomethingElse) {
  Report report = profile();
  report.verdict = report.diagnosis = "compute-bound: 75 % of a step";
  EXPECT_EQ(count(report_text(report, 80, false), "compute-bound"), 1U);
  EXPECT_THAT(report_html(report), Not(HasSubstr("Diagnosis:")));
  report.verdict = "Decoding images runs out first.";
  EXPECT_THAT(report_text(report, 80, false), HasSubstr("\n  diagnosis   compute-bound: 75 % of a step\n"));
  EXPECT_THAT(report_html(report), HasSubstr("Diagnosis: compute-bound: 75\u00a0% of a step</p>"));
}

TEST(WallReport, TellsEachPartOfTheLoopAndWhatThreadsWaitedFor) {
  Report report;
  report.wall = WallSplit{.total_s = 20, .setup_s = 3, .after_s = 1, .forward_s = 8, .validation_s = 4, .python_s = 4};
  report.waits = Waits{.empty_queue_s = 1.5, .lock_s = 0.0, .why_no_io = "a < b"};
  const std::string html = section(report_html(report), "wall");
  EXPECT_THAT(html, HasSubstr("20.0 s in all: 3.00 s before the first part, 16.0 s of loop, 1.00 s behind the last"));
  EXPECT_THAT(html, HasSubstr("<rect class=\"part part-2\" x=\"0.000%\" y=\"0\" width=\"50.000%\" height=\"28\">"));
  EXPECT_THAT(html, HasSubstr("<rect class=\"part area-6\" x=\"50.000%\" y=\"0\" width=\"25.000%\""));
  EXPECT_THAT(html, HasSubstr("validation</th><td class=\"number\">4.00 s</td><td class=\"number\">25 %</td>"));
  EXPECT_EQ(section(report_html(Report{}), "wall"), "");
  const std::string waits = section(report_html(report), "waits");
  EXPECT_THAT(waits, HasSubstr("an empty queue</th><td class=\"number\">1.50 s</td>"));
  EXPECT_THAT(waits, HasSubstr("a lock</th><td class=\"number\">0.00 ms</td>"));
  EXPECT_EQ(count(waits, "unavailable</span>"), 3U);  // Nobody recorded the others: that is not 0.
  EXPECT_EQ(count(waits, "unavailable</span>: a &lt; b</td>"), 1U);
  report.wall.reset();
  EXPECT_EQ(section(report_html(report), "waits"), waits);
  EXPECT_EQ(section(report_html(report), "wall"), "");
  report.waits.reset();
  EXPECT_EQ(section(report_html(report), "waits"), "");
  report.wall = WallSplit{.total_s = 5, .setup_s = 5};
  EXPECT_THAT(section(report_html(report), "wall"), Not(HasSubstr("<svg class=\"split\"")));
}

TEST(CacheReport, TellsTheHitRateAndWhatIsHeld) {
  const Report report = sample_report();
  for (const std::string& text : {report_html(report), report_text(report, 400, false)}) {
    EXPECT_THAT(text, testing::ContainsRegex("Samples are kept decoded. 199,200 of 240,000 samples were found there, "
                                             "83.{1,2}%; it held 200 MB at the end."));
  }
  EXPECT_THAT(report_html(report), HasSubstr("width=\"83.00%\""));
}

TEST(CacheReport, WithoutOneSaysWhy) {
  Report report;
  for (const std::string& text : {report_html(report), report_text(report, 400, false)}) {
    EXPECT_THAT(text, HasSubstr("Unavailable: only the loader of headrace counts a cache"));
  }
  report.cache = Report::Cache{"none", "the source holds its pixels in memory.", 0, 0, 0};
  for (const std::string& text : {report_html(report), report_text(report, 400, false)}) {
    EXPECT_THAT(text, HasSubstr("No sample is kept in memory: the source holds its pixels in memory. None was looked"));
  }
  report = Report{};
  report.live = true;
  EXPECT_EQ(section(report_html(report), "cache"), "");
}

TEST(PairsReport, HasADotForEachPairAndItsTable) {
  const std::string html = section(report_html(sample_report()), "pairs");
  EXPECT_EQ(count(html, "<circle"), 24U);
  EXPECT_EQ(count(html, "<tr>"), 25U);
  EXPECT_THAT(html, HasSubstr("1.52 [1.47, 1.58]"));
  Report unknown = sample_report();
  unknown.speedup_ratios.clear();
  EXPECT_EQ(section(report_html(unknown), "pairs"), "");
  unknown.speedup_ratios = {1.5};
  unknown.speedup_high = std::numeric_limits<double>::infinity();  // Of a single pair there is no interval.
  EXPECT_EQ(section(report_html(unknown), "pairs"), "");
}

TEST(PairsReport, AChangesPairsAreDotsWithinItsChart) {
  Report report = sample_report();
  EXPECT_EQ(count(report_html(report), "<circle class=\"pair\""), 12U);
  report.changes[0].pair_gains = {5, -0.9, std::numeric_limits<double>::infinity()};
  const std::string html = report_html(report);
  EXPECT_THAT(html, HasSubstr("<circle class=\"pair\" cx=\"100.00%\""));
  EXPECT_THAT(html, HasSubstr("<circle class=\"pair\" cx=\"0.00%\""));
  EXPECT_EQ(count(html, "<circle class=\"pair\""), 2U);
}

TEST(Series, ThinnedKeepsTheLeastAndTheMostOfEachShare) {
  Report::Curve curve{"loss", "", {}, {}};
  for (int i = 0; i < 1000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 777 ? 99 : i == 333 ? -99 : 1);
  }
  const Report::Curve fewer = detail::thinned(curve, 20);
  EXPECT_LE(fewer.x.size(), 20U);
  EXPECT_THAT(fewer.y, testing::Contains(99));
  EXPECT_THAT(fewer.y, testing::Contains(-99));
  EXPECT_TRUE(std::is_sorted(fewer.x.begin(), fewer.x.end()));
  EXPECT_EQ(detail::thinned(curve, 1000).x.size(), 1000U);
  EXPECT_THAT(detail::thinned({1, 2, 3, 4, 5}, 2), ElementsAre(1, 4));
  EXPECT_TRUE(detail::thinned(std::vector<double>{}, 5).empty());
}

TEST(ReportHtml, EveryIdIsThereOnce) {
  const std::regex id(" id=\"([^\"]*)\"");
  const std::string html = report_html(report_of("name"));
  std::multiset<std::string> ids;
  for (std::sregex_iterator it(html.begin(), html.end(), id), end; it != end; ++it) ids.insert((*it)[1]);
  for (const std::string& one : ids) EXPECT_EQ(ids.count(one), 1U) << one;
  for (const char* svg : {"steps-0", "step-1", "flame-1-0", "pairs", "cache", "memory", "curve-1"}) {
    EXPECT_EQ(ids.count(std::string(svg) + "-title"), 1U) << svg;
  }
}

// 100,000 spans of 400 names, all of them signs that take six bytes each in HTML, twice.
Report large_report() {
  TraceRecord record;
  record.names = {{"step", "step"}};
  const std::string quotes(500, '"');
  for (int i = 0; i < 400; ++i) record.names.push_back({quotes + std::to_string(i), i % 2 == 0 ? "operator" : "wait"});
  for (int i = 0; i < 20; ++i) record.threads.push_back(quotes + std::to_string(i));
  for (std::int64_t i = 0; i < 2'000; ++i) {
    const std::int64_t begin = i * 1'000'000;
    record.events.push_back({0, 0, begin, begin + 1'000'000, 0});
    for (std::int64_t k = 0; k < 50; ++k) {
      const auto name = static_cast<std::uint32_t>(1 + (7 * i + k) % 400);
      record.events.push_back(
          {name, static_cast<std::uint32_t>(k % 20), begin + 1'000 * k, begin + 900'000 - 1'000 * k, 0});
    }
  }
  Report report = sample_report();
  report.traces.clear();
  show_trace(report, record, "Before");
  show_trace(report, record, "After");
  for (int i = 0; i < 20; ++i) report.changes.push_back(report.changes[0]);
  for (Report::Change& change : report.changes) {
    change.reason.assign(100'000, 'w');
    change.pair_gains.assign(5'000, 0.1);
  }
  report.speedup_ratios.assign(5'000, 1.5);
  for (Report::Curve& curve : report.curves) {
    curve.x.assign(100'000, 1);
    curve.y.assign(100'000, 1);
  }
  return report;
}

TEST(ReportHtml, StaysBelowItsSizeWhateverWasRecorded) {
  const std::string html = report_html(large_report());
  EXPECT_LT(html.size(), 1'500'000U);
  EXPECT_GT(html.size(), 100'000U);
  EXPECT_LT(report_html(sample_report()).size(), 200'000U);
}

TEST(ReportHtml, ACommandIsNeverCutAsOtherTextsAre) {
  Report report;
  report.command = "headrace train recipe.toml";
  for (int i = 0; i < 500; ++i) report.command += " --key" + std::to_string(i) + " value";
  EXPECT_THAT(report_html(report), HasSubstr("<span>--key499</span>"));
  report.verdict.assign(100'000, 'v');
  EXPECT_LT(report_html(report).size(), 100'000U);
}

}  // namespace
}  // namespace headrace
