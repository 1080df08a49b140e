#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/diagnosis.h>
#include <headrace/error.h>
#include <headrace/report.h>
#include <headrace/time_split.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/sample_report.h"
#include "insight/diagnose/text_count.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// nlohmann refuses to print a string that is not UTF-8: an independent check.
bool is_utf8(const std::string& text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

void expect_lines_within(const std::string& text, int width) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(detail::columns(line), width) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos) << line;
  }
}

std::vector<Report> reports() {
  const std::string longest(200, 'w');
  Report huge = sample_report();
  for (Report::Change& change : huge.changes) change.gain = change.gain_low = change.gain_high = 1e200;
  huge.baseline_samples_per_second = 1e200;
  Report odd = sample_report();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (Report::Change& change : odd.changes) change.gain = change.gain_low = change.gain_high = nan;
  odd.speedup = odd.test_accuracy.emplace(nan);
  odd.best_samples_per_second = std::numeric_limits<double>::infinity();
  odd.curves[0].y.assign(4, nan);
  odd.curves[1].y[3] = nan;
  odd.before = TimeSplit{};
  Report live, live_and_measured = sample_report();
  live.live = live_and_measured.live = true;
  return {Report{},
          live,
          live_and_measured,
          sample_report(),
          huge,
          odd,
          report_of(longest),
          report_of("\xff\xfe\xc3( \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82"),
          report_of("\x1b[31mred\x1b[0m\r\n\t\b\x7f \xc2\x9b"
                    "2J \xe2\x80\xae"
                    "gpj.exe"),
          report_of("日本語の名前 🚀 é e\xcc\x81")};
}

TEST(ReportHtml, EscapesEveryText) {
  const std::string html = report_html(report_of("<script>alert(1)</script>\"onload='x'&amp;</style></title>"));
  EXPECT_EQ(count(html, "<script"), 0U);
  EXPECT_EQ(count(html, "</style>"), 1U);
  EXPECT_EQ(count(html, "</title></style>"), 0U);
  EXPECT_EQ(count(html, "\"onload"), 0U);
  EXPECT_EQ(count(html, "'x'"), 0U);
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&quot;onload=&#39;x&#39;&amp;amp;"));
}

TEST(ReportHtml, ForbidsEverythingButInlineStyle) {
  const std::string html = report_html(sample_report());
  EXPECT_THAT(html, HasSubstr("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                              "'unsafe-inline'; base-uri 'none'; form-action 'none'\">"));
}

TEST(ReportHtml, AsksNothingOfTheNetwork) {
  const std::string html = report_html(sample_report());
  for (const char* reference : {"http:", "https:", "//", "src=", "href", "@import", "<link", "<script", "<iframe",
                                "<img", "<object", "<form", "javascript"}) {
    EXPECT_EQ(count(html, reference), 0U) << reference;
  }
  EXPECT_FALSE(std::regex_search(html, std::regex("<[^>]* on[a-z]+=")));  // No event handler.
  EXPECT_EQ(count(html, "url("), count(html, "url(#"));                   // Only fills of this page.
}

TEST(ReportHtml, CutsCredentialsOutOfEveryText) {
  const std::string html = report_html(report_of("s3://key:hunter2@bucket/a?token=hunter2"));
  EXPECT_EQ(count(html, "hunter2"), 0U);
  EXPECT_THAT(html, HasSubstr("s3://bucket/a"));
  EXPECT_EQ(count(report_text(report_of("s3://key:hunter2@bucket/a?token=hunter2"), 80, false), "hunter2"), 0U);
}

TEST(ReportHtml, ShowsTheNumbersOfItsReport) {
  const std::string html = report_html(sample_report());
  for (const char* number : {"1.52 times as fast, numerically the same.",
                             "3,104",
                             "4,719",
                             "1.52 \u00d7",
                             "1.47 to 1.58",
                             "24 pairs",
                             "0.9142",
                             "loss 0.2417",
                             "+19.8\u00a0%",
                             "[\u221218.4\u00a0%, \u221213.2\u00a0%]",
                             "3.1e-07 of 1e-02 allowed",
                             "12.8 ms",
                             "41.2 ms a step",
                             "AMD EPYC 7B13",
                             "optimizer.fused",
                             "Not as requested",
                             "<span>--seed</span>",
                             "2026-11-20 15:30:00 UTC",
                             "kept",
                             "refused",
                             "inconclusive",
                             "failed"}) {
    EXPECT_THAT(html, HasSubstr(number));
  }
}

TEST(ReportHtml, PutsTheVerdictFirst) {
  const std::string html = report_html(sample_report());
  EXPECT_LT(html.find("<h1>1.52 times"), html.find("<h2"));
  EXPECT_EQ(count(html, "<h1>"), 1U);
}

TEST(ReportHtml, EveryChartHasATextAlternativeAndEveryColumnAScope) {
  for (const Report& report : reports()) {
    const std::string html = report_html(report);
    EXPECT_EQ(count(html, "role=\"img\""), count(html, "<desc id="));
    EXPECT_EQ(count(html, "<th>"), 0U);
    EXPECT_EQ(count(html, "<th "), count(html, "scope="));
  }
}

// Every tag that opens closes, in order: what an XML parser would check, for the elements that must close.
TEST(ReportHtml, IsWellFormedWhateverTheTextsAre) {
  const std::regex tag("<(/?)([a-z0-9]+)([^>]*)>");
  for (const Report& report : reports()) {
    const std::string html = report_html(report);
    EXPECT_TRUE(is_utf8(html));
    std::vector<std::string> open;
    for (std::sregex_iterator it(html.begin(), html.end(), tag), end; it != end; ++it) {
      const std::string name = (*it)[2], rest = (*it)[3];
      if (name == "meta" || (!rest.empty() && rest.back() == '/')) continue;
      if ((*it)[1].length() == 0) {
        open.push_back(name);
      } else {
        ASSERT_FALSE(open.empty()) << name;
        EXPECT_EQ(open.back(), name);
        open.pop_back();
      }
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(count(html, "nan%") + count(html, "inf%") + count(html, "\"nan\""), 0U);
  }
}

TEST(ReportHtml, SaysUnavailableForWhatIsMissing) {
  const std::string html = report_html(Report{});
  EXPECT_THAT(html, HasSubstr("Samples per second before and after: unavailable."));
  EXPECT_THAT(html, HasSubstr("<dt>Speedup</dt><dd><span class=\"value unavailable\">unavailable</span>"));
  EXPECT_THAT(html, HasSubstr("No change was tried."));
  Report failed = sample_report();
  failed.changes = {failed.changes.back()};
  EXPECT_THAT(report_html(failed), HasSubstr("data-label=\"Gain\"><span class=\"unavailable\">unavailable</span>"));
}

TEST(ReportHtml, RefusesACurveWithoutAnXForEveryY) {
  Report report = sample_report();
  report.curves[0].x.pop_back();
  EXPECT_THROW(report_html(report), Error);
}

TEST(ReportHtml, WaterfallEndsWithTheMeasuredRate) {
  Report report = sample_report();
  report.best_samples_per_second = 4000;  // Less than the product of the separate gains.
  const std::string html = report_html(report);
  EXPECT_THAT(html, HasSubstr(">After, measured</text><text class=\"figure\" x=\"100%\" y=\"198\">4,000 samples/s<"));
  // 3104.2 * 1.198 * 1.224 * 1.039 = 4729: the longest bar, so the measured one takes 4000 / 4729 of the width.
  EXPECT_THAT(html, HasSubstr("class=\"total best\" x=\"0.00%\" y=\"204\" width=\"84.58%\""));
}

TEST(ReportText, FitsItsWidthWhateverTheTextsAre) {
  for (const Report& report : reports()) {
    for (const int width : {40, 60, 74, 75, 80, 120}) {
      const std::string text = report_text(report, width, false);
      expect_lines_within(text, width);
      EXPECT_TRUE(is_utf8(text));
    }
    expect_lines_within(report_text(report, 10, false), 40);
  }
}

TEST(ReportText, ColourChangesNoCharacter) {
  for (const Report& report : reports()) {
    const std::string coloured = report_text(report, 80, true);
    EXPECT_EQ(std::regex_replace(coloured, std::regex("\x1b\\[[0-9]+m"), ""), report_text(report, 80, false));
    EXPECT_THAT(coloured, HasSubstr("\x1b["));
  }
}

TEST(ReportText, ShowsTheNumbersOfItsReport) {
  const std::string text = report_text(sample_report(), 80, false);
  for (const char* part :
       {"1.52 times as fast, numerically the same.", "before      3,104 samples/s", "after       4,719 samples/s",
        "1.52 [1.47, 1.58] times as fast (95 % interval, 24 pairs)", "accuracy 0.9142, loss 0.2417", "+ kept",
        "- refused", "? inconclusive", "! failed", "+19.8 %    [+17.9 %, +21.6 %]    12",
        "-15.9 %    [-18.4 %, -13.2 %]     6", "12.8 ms    31 %", "compute.wait_policy is \"passive\", not \"active\"",
        "1 change was left open"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(ReportText, AndThePageTellWhatLoadingTookAndWhatTheLoaderChanged) {
  Report report = sample_report();
  for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
    EXPECT_THAT(text, HasSubstr("240,000"));
    EXPECT_THAT(text, HasSubstr("limits the rate"));
    EXPECT_THAT(text, HasSubstr("4.20 s for room"));
    EXPECT_THAT(text, HasSubstr("3.40 s for input"));
    EXPECT_THAT(text, HasSubstr("753 MB"));
    EXPECT_THAT(text, HasSubstr("a batch takes the threads 33 ms"));
    EXPECT_THAT(text, HasSubstr("rolled back"));
  }
  EXPECT_THAT(report_text(report, 400, false),
              HasSubstr("after batch 37: data.num_workers 1 -> 3 (rolled back): a batch takes the threads 33 ms"));
  report.stages.clear();
  EXPECT_EQ(report_html(report).find("Loading</h2>"), std::string::npos);
  EXPECT_EQ(report_text(report, 80, false).find(" s for room"), std::string::npos);
}

TEST(ReportText, AndThePageTellANoteBeforeEveryFigure) {
  Report report = sample_report();
  report.kind = Report::Kind::profile;
  report.title = "a job";
  report.verdict.clear();
  report.note = "the device is not waited for";
  std::string page = report_html(report);
  page = std::regex_replace(page.substr(page.find("<body>")), std::regex("<[^>]*>"), "");
  for (const std::string& text : {report_text(report, 400, false), page}) {
    const std::size_t at = text.find(report.note);
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(text.substr(0, at).find_first_of("0123456789"), std::string::npos) << text.substr(0, at);
  }
  report.note.clear();
  EXPECT_THAT(report_text(report, 400, false), Not(HasSubstr("waited for")));
}

TEST(ReportText, AndThePageListWhatWasNotAppliedFoundOrLeftOpen) {
  Report report = sample_report();
  for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
    EXPECT_THAT(text, HasSubstr("Compute threads (2) and loader workers (1) share 2 cores"));
    EXPECT_THAT(text, HasSubstr("compute.wait_policy is "));
    EXPECT_THAT(text, HasSubstr("1 change was left open."));
  }
  report.findings.clear();
  report.settings.pop_back();
  report.changes.clear();
  EXPECT_THAT(report_text(report, 80, false), HasSubstr("Nothing stands out."));
  EXPECT_THAT(report_html(report), HasSubstr("Nothing stands out."));
}

TEST(ReportText, AndThePageListWhatWasNotTriedWithItsReason) {
  Report report = sample_report();
  EXPECT_THAT(report_text(report, 400, false), Not(HasSubstr("\nNot tried\n")));
  EXPECT_THAT(report_html(report), Not(HasSubstr("<h3>Not tried</h3>")));
  report.not_tried = {{"torch.compile", "model.compile", "a < b"}};
  EXPECT_THAT(report_text(report, 400, false), HasSubstr("Not tried\n  - torch.compile (model.compile): a < b.\n"));
  EXPECT_THAT(report_html(report),
              HasSubstr("<h3>Not tried</h3>\n<ul>\n<li>torch.compile (<code>model.compile</code>): "
                        "a &lt; b.</li>"));
  report.changes.clear();
  EXPECT_THAT(report_html(report), HasSubstr("<h3>Not tried</h3>"));
}

TEST(ReportText, SaysUnavailableForWhatIsMissing) {
  const std::string text = report_text(Report{}, 80, false);
  for (const char* part : {"before      unavailable", "speedup     unavailable", "test        unavailable",
                           "None was tried.", "now: unavailable", "Nothing stands out."}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr(" 0")));
}

TEST(ReportText, AndThePageSayOfWhichStepsTheSplitsAre) {
  Report report = sample_report();
  for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
    EXPECT_THAT(text,
                HasSubstr("of the 24 pairs that the speedup is from. A step before takes 1.52 times as long as one "
                          "after; the speedup, 1.52, is the middle"));
    EXPECT_THAT(text, Not(HasSubstr("does not pay in the first")));
  }
  report.late_share = 0.25;
  for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
    EXPECT_THAT(text, HasSubstr("does not pay in the first 25"));
  }
}

TEST(ReportText, AndThePageShowOneSplitWhereNothingWasCompared) {
  Report report = sample_report();
  report.after.reset();
  report.speedup_pairs = 0;
  const std::string text = report_text(report, 400, false), html = report_html(report);
  EXPECT_THAT(text, HasSubstr("step       now"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"col\" class=\"number\">Now, share</th></tr>"));
  for (const std::string& page : {text, html}) {
    EXPECT_THAT(page, HasSubstr("Of the job as written, before the first trial; it was not compared"));
    EXPECT_THAT(page, Not(HasSubstr("fter: unavailable")));
  }
  report.speedup_pairs = 24;
  EXPECT_THAT(report_text(report, 400, false), HasSubstr("the steps compared later went is unavailable."));
}

DiagnosisInput slow_optimizer() {
  DiagnosisInput input;
  input.split = sample_split(0.062, 0.021, 0.512, 0.734, 0.606, 0.015);
  input.samples_per_step = 64;
  return input;
}

Report report_with_slow_optimizer() {
  Report report;
  report.findings = diagnose(slow_optimizer()).findings;
  report.budget_s = 90;
  return report;
}

TEST(AdviceLeft, IsTheDiagnosisOwnWhileNothingWasTried) {
  Report report = report_with_slow_optimizer();
  ASSERT_EQ(report.findings.size(), 1U);
  const std::string advice = report.findings[0].advice;
  EXPECT_EQ(advice, "Try optimizer.fused = true.");
  EXPECT_EQ(advice_left(report)[0].advice, advice);
  report.changes = {sample_changes()[1]};  // Of another key.
  EXPECT_EQ(advice_left(report)[0].advice, advice);
}

TEST(AdviceLeft, DoesNotProposeAFusedOptimizerToOneThatIsFused) {
  DiagnosisInput input = slow_optimizer();
  input.has_fused_optimizer = true;
  EXPECT_EQ(diagnose(input).findings.at(0).advice, "optimizer.fused is true already.");
}

TEST(AdviceLeft, SaysWhatCouldNotBeSetAndWhy) {
  Report report = report_with_slow_optimizer();
  report.settings = {{"optimizer.fused", "fused optimizer", "as it was", "its groups differ"}};
  EXPECT_EQ(advice_left(report)[0].advice, "optimizer.fused: not applicable: its groups differ.");
  report.settings[0].requested = report.settings[0].applied;
  EXPECT_THAT(advice_left(report)[0].advice, HasSubstr("Try"));
  report.settings[0] = {"optimizer.fused", "auto", "false", ""};  // Left to the program: nothing was refused.
  EXPECT_THAT(advice_left(report)[0].advice, HasSubstr("Try"));
  report.not_tried = {{"fused optimizer", "optimizer.fused", "RMSprop has none"}};
  EXPECT_EQ(advice_left(report)[0].advice, "optimizer.fused: not applicable: RMSprop has none.");
}

TEST(AdviceLeft, KeepsWhatConcernsNoSettingThatWasTried) {
  Report report;
  report.findings = {{"cores_oversubscribed",
                      "Seen.",
                      "A. B.",
                      {{"A.", {"data.num_workers", "compute.intra_op_threads"}}, {"B.", {}}}}};
  report.changes = {sample_changes()[3]};
  EXPECT_EQ(advice_left(report)[0].advice,
            "data.num_workers = 2: inconclusive, +0.8 % [-1.1 %, +2.7 %] after 14 pairs. A larger budget gives more "
            "pairs. B.");
}

TEST(ReportText, TellsAnUnavailableGainFromNone) {
  Report report = sample_report();
  report.changes[0].gain = 0.0;
  report.changes[0].gain_low = report.changes[0].gain_high = std::nullopt;
  EXPECT_THAT(report_text(report, 80, false), HasSubstr("+0.0 % "));
}

TEST(Credentials, AreCutOutOfUrls) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"https://user:secret@host/a?token=x", "https://host/a"},
      {"https://host/a", "https://host/a"},
      {"plain text, a@b.c: 3?", "plain text, a@b.c: 3?"},
      {"see https://u:p@h:8080/x?y#z, then", "see https://h:8080/x then"},
      {"https://token@host", "https://host"},
      {"https://u:p@a@host/", "https://host/"},
      {"https://u:pa/ss?w@host/x", "https://host/x"},
      {"https://host:8080/@name/x", "https://host:8080/@name/x"},
      {"http://[::1]:80/@x?k=v", "http://[::1]:80/@x"},
      {"'s3://k:s@b/a?x=1' 'rest?'", "'s3://b/a' 'rest?'"},
      {"<a href=\"ftp://u:p@h/a?b\">c?</a>", "<a href=\"ftp://h/a\">c?</a>"},
      {"https://h1,https://u:p@h2/a", "https://h1,https://h2/a"},
      {"https://a:b@h1,https://c:d@h2", "https://h1,https://h2"},
      {"https://h/?next=https://u:p@x", "https://h/"},
      {"://u:p@h", "://u:p@h"},
      {"https://", "https://"},
      {"", ""}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(without_credentials(text), expected) << text;
}

TEST(Text, CutsAndWrapsByColumns) {
  EXPECT_EQ(detail::columns("日本 e\xcc\x81"), 6);
  EXPECT_EQ(detail::fitted("日本語", 4), "日…");
  EXPECT_EQ(detail::padded("ab", 4), "ab  ");
  EXPECT_THAT(detail::wrapped("one two  three", 7), testing::ElementsAre("one two", "three"));
  EXPECT_THAT(detail::wrapped("gains 21 % here", 8), testing::ElementsAre("gains", "21 %", "here"));
  EXPECT_THAT(detail::wrapped("a bcdefgh i", 4), testing::ElementsAre("a", "bcde", "fgh", "i"));
}

TEST(Figures, NeverShowZeroForWhatIsNotZero) {
  EXPECT_EQ(detail::grouped(1234567.4), "1,234,567");
  EXPECT_EQ(detail::grouped(-12345), "-12,345");
  EXPECT_EQ(detail::grouped(99.54), "99.5");
  EXPECT_EQ(detail::percent_text(0.996), "100 %");
  EXPECT_EQ(detail::percent_text(0.0996), "10 %");
  EXPECT_EQ(detail::percent_text(0.004), "0.4 %");
  EXPECT_EQ(detail::gain_text(-0.0001), "+0.0 %");
  EXPECT_EQ(detail::milliseconds_text(3.2e-5), "32.0 us");
  EXPECT_EQ(detail::milliseconds_text(0.01234), "12.3 ms");
  EXPECT_EQ(detail::fixed_text(std::numeric_limits<double>::quiet_NaN(), 2), "not finite");
}

}  // namespace
}  // namespace headrace
