#include "insight/tune/live_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kSubject = "the loop as written";

Trial trial(const std::string& name, Verdict verdict) {
  Trial value;
  value.name = name;
  value.changes = {{"compute.flush_denormal", "true"}};
  value.verdict = verdict;
  value.sentence = "Judged.";
  return value;
}

Trial proved(const std::string& name, Interval gain, std::int64_t pairs) {
  Trial value = trial(name, Verdict::kept);
  value.gain = gain;
  value.pairs = pairs;
  return value;
}

LiveLedger ledger_of(std::vector<Trial> trials) {
  LiveLedger live;
  live.estimates.resize(trials.size());
  for (const Trial& one : trials) {
    if (one.verdict == Verdict::kept) live.ledger.best[one.name] = "true";
  }
  live.ledger.trials = std::move(trials);
  live.updates = 400;
  live.counted_units = 380;
  live.turns = {{1, {}, "pair 1, first block"}, {3, {}, "pair 1, second block"}, {5, {}, "pair 2, first block"}};
  live.lost_s = 1.5;
  live.lost_most_s = 4.5;
  live.lost_allowed_s = 31;
  return live;
}

Report report_on(const LiveLedger& live) {
  Report report;
  show_live_ledger(report, live, {}, kSubject);
  return report;
}

TEST(LiveReport, TheProofOfTheOnlyChangeKeptIsTheSpeedup) {
  LiveLedger live = ledger_of({proved("fused optimizer", {0.43, 0.38, 0.47}, 12), trial("bf16", Verdict::refused),
                               trial("arena for tensors", Verdict::inconclusive)});
  const Report report = report_on(live);
  EXPECT_EQ(report.verdict,
            "1.43 times as fast as the loop as written, proved in 12 pairs; 1 change kept, 1 refused, 1 inconclusive.");
  EXPECT_TRUE(report.positive);
  EXPECT_DOUBLE_EQ(report.speedup, 1.43);
  EXPECT_EQ(report.speedup_pairs, 12);
}

TEST(LiveReport, ChangesKeptOneAfterTheOtherHaveNoSpeedupThatNobodyMeasured) {
  LiveLedger live = ledger_of({proved("fused optimizer", {0.2, 0.1, 0.3}, 12), proved("bf16", {0.5, 0.4, 0.6}, 10)});
  Report report = report_on(live);
  EXPECT_EQ(report.verdict,
            "2 changes kept, each alone against the best before it (fused optimizer, +20.0 % (95 %: +10.0 % to +30.0 "
            "%, 12 pairs); bf16, +50.0 % (95 %: +40.0 % to +60.0 %, 10 pairs)); all together were not compared with "
            "the loop as written.");
  EXPECT_FALSE(report.positive);
  EXPECT_EQ(report.speedup_pairs, 0);
  live.ledger.speedup = {1.7, 1.6, 1.8};
  live.ledger.speedup_pairs = 10;
  report = report_on(live);
  EXPECT_EQ(report.verdict, "1.70 times as fast as the loop as written, proved in 10 pairs; 2 changes kept.");
  EXPECT_TRUE(report.positive);
}

TEST(LiveReport, WhatWasTakenOutAgainWasInForceDuringTheOtherProofSoThereIsNoSpeedup) {
  Trial taken_out = trial("bf16", Verdict::refused);
  taken_out.removed_again = true;
  const Report report = report_on(ledger_of({proved("fused optimizer", {0.2, 0.1, 0.3}, 12), taken_out}));
  EXPECT_EQ(report.speedup_pairs, 0);
  EXPECT_THAT(report.verdict, HasSubstr("were not compared with the loop as written"));
}

TEST(LiveReport, AGainWhoseIntervalHoldsNothingIsNotCalledFaster) {
  LiveLedger live = ledger_of({proved("fused optimizer", {0.02, 0.01, 0.03}, 12)});
  live.ledger.speedup = {1.01, 0.99, 1.03};
  live.ledger.speedup_pairs = 10;
  const Report report = report_on(live);
  EXPECT_FALSE(report.positive);
  EXPECT_EQ(report.verdict,
            "What was kept is not proved to be faster than the loop as written: +1.0 % (95 %: -1.0 % to +3.0 %, 10 "
            "pairs); 1 change kept.");
}

TEST(LiveReport, AnOpenChangeHasTheGainOfItsTurnsAndSaysWhatWouldDecideIt) {
  LiveLedger live = ledger_of({trial("arena for tensors", Verdict::inconclusive)});
  live.estimates[0].gain = Interval{0.05, -0.01, 0.11};
  live.estimates[0].pairs = 41;
  live.estimates[0].pairs_needed = 100;
  const Report report = report_on(live);
  EXPECT_EQ(report.verdict,
            "No change was proved to pay; 1 of 1 change inconclusive; arena for tensors looks best: +5.0 % (95 %: -1.0 "
            "% to +11.0 %, 41 pairs).");
  ASSERT_EQ(report.changes.size(), 1U);
  EXPECT_EQ(report.changes[0].gain, 0.05);
  EXPECT_EQ(report.changes[0].gain_high, 0.11);
  EXPECT_EQ(report.changes[0].pairs, 41);
  EXPECT_EQ(report.changes[0].reason,
            "Judged. About 100 pairs more would decide it, 400 updates "
            "at the pace so far.");
  live.turns.clear();
  live.estimates[0].pairs_needed.reset();
  EXPECT_EQ(report_on(live).changes[0].reason, "Judged.");
}

TEST(LiveReport, NothingIsSaidOfAGainThatNobodyMeasured) {
  LiveLedger live = ledger_of({trial("arena for tensors", Verdict::inconclusive)});
  live.estimates[0].gain = Interval{std::numeric_limits<double>::quiet_NaN(), 0, 0};
  const Report report = report_on(live);
  EXPECT_FALSE(report.changes[0].gain.has_value());
  EXPECT_EQ(report.verdict, "No change was proved to pay; 1 of 1 change inconclusive, without a measured pair.");
  live.estimates.clear();  // A part that is missing is not made up.
  EXPECT_FALSE(report_on(live).changes[0].gain.has_value());
}

TEST(LiveReport, AChangeThatAllowForbidsIsNotOpenAndNamesTheAllowThatItNeeds) {
  Trial forbidden = trial("bf16 autocast", Verdict::inconclusive);
  forbidden.numerics.numeric_class = NumericClass::reduced_precision;
  LiveLedger live = ledger_of({forbidden});
  live.estimates[0].timed_only = true;
  live.estimates[0].gain = Interval{0.31, 0.25, 0.36};
  live.estimates[0].pairs = 8;
  Report report = report_on(live);
  EXPECT_EQ(report.verdict,
            "No change paid: the loop as written is as fast as the changes that may be tried make it here.");
  EXPECT_EQ(report.changes[0].verdict, "refused");
  EXPECT_EQ(report.changes[0].reason, "Judged. It needs allow = \"reduced_precision\".");
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].sentence,
            "bf16 autocast gained +31.0 % (95 %: +25.0 % to +36.0 %, 8 pairs) on kept calls, where it was only timed.");
  EXPECT_EQ(report.findings[0].advice, "With allow = \"reduced_precision\" it is tried.");
  const std::vector<Candidate> tried{
      {"bf16 autocast", "Half the bits.", {}, NumericClass::reduced_precision, "compute"}};
  live.ledger.trials[0].numerics = {};  // Never checked: the class is the candidate's.
  report = Report{};
  show_live_ledger(report, live, tried, kSubject);
  EXPECT_EQ(report.findings.at(0).advice, "With allow = \"reduced_precision\" it is tried.");
  live.ledger.trials[0].numerics.numeric_class = NumericClass::reduced_precision;
  live.estimates[0].gain = Interval{-0.1, -0.2, 0};
  EXPECT_TRUE(report_on(live).findings.empty());
  live.estimates[0].gain.reset();
  report = report_on(live);
  EXPECT_FALSE(report.changes[0].gain.has_value());
  EXPECT_THAT(report_text(report, 100, false), Not(HasSubstr("left open")));
}

TEST(LiveReport, WhatIsForbiddenAndWasLeftOutForAnotherReasonNeedsNoOtherAllow) {
  Trial fixed = trial("bf16 autocast", Verdict::refused);
  fixed.reason = Reason::fixed;
  LiveLedger live = ledger_of({fixed});
  live.estimates[0].timed_only = true;
  EXPECT_EQ(report_on(live).changes[0].reason, "Judged.");
}

TEST(LiveReport, TheNoteTellsWhatTheSearchCost) {
  LiveLedger live = ledger_of({trial("arena for tensors", Verdict::inconclusive)});
  Report report = report_on(live);
  EXPECT_EQ(report.note,
            "400 updates seen, 380 of them timed (20 were unlike the others, as with an evaluation or at an epoch's "
            "end), settings changed 3 times; the search is under way. By the times of its own updates the run is now "
            "1.5 s behind the loop as written; it was at most 4.5 s behind, where 31.0 s are allowed.");
  EXPECT_FALSE(report.budget_s.has_value());
  live.ended = true;
  live.end_reason = "every change is decided";
  live.lost_s = -12;
  EXPECT_THAT(report_on(live).note, HasSubstr("the search is over: every change is decided. By the times of its own "
                                              "updates the run is now 12.0 s ahead of the loop as written;"));
  live.counted_units = live.updates;
  EXPECT_THAT(report_on(live).note, testing::StartsWith("400 updates seen, 400 of them timed, settings changed"));
  report = Report{};
  report.note = "Two loaders take turns.";
  show_live_ledger(report, live, {}, kSubject);
  EXPECT_THAT(report.note, testing::StartsWith("Two loaders take turns. 400 updates seen"));
}

TEST(LiveReport, ARunOfThreeStepsSaysThatNothingWasTriedAndNoSecondsThatNobodyMeasured) {
  LiveLedger live;
  live.updates = 3;
  live.ended = true;
  live.end_reason = "the run ended";
  const Report report = report_on(live);
  EXPECT_EQ(report.verdict, "No change was tried on the loop as written: the search is over: the run ended.");
  EXPECT_EQ(report.note,
            "3 updates seen, 0 of them timed, settings changed 0 times; the search is over: the run ended.");
  const std::string text = report_text(report, 100, false);
  EXPECT_THAT(text, Not(HasSubstr(" s behind")));
  EXPECT_THAT(text, HasSubstr("None was tried"));
}

TEST(LiveReport, SpeaksOfARunThatWentOnAndOfNoBudgetOrTrialsBesideIt) {
  LiveLedger live = ledger_of({trial("arena for tensors", Verdict::inconclusive)});
  live.estimates[0].gain = Interval{0.05, -0.01, 0.11};
  Report report = report_on(live);
  EXPECT_TRUE(report.live);
  report.findings = {{"page_faults", "Pages fault.", "Try.", {{"Try.", {"compute.flush_denormal"}}}}};
  const std::string advice = advice_left(report).at(0).advice;
  EXPECT_THAT(advice, HasSubstr("A longer run gives more pairs."));
  EXPECT_THAT(report_text(report, 200, false), HasSubstr("1 change was left open. A longer run gives more pairs."));
  EXPECT_THAT(report_html(report), HasSubstr("In pairs of neighbouring updates of the run itself"));
  for (const std::string& text : {report_text(report, 200, false), report_html(report)}) {
    EXPECT_THAT(text, Not(HasSubstr("larger budget")));
    EXPECT_THAT(text, Not(HasSubstr("interleaved on the same samples")));
  }
}

TEST(LiveReport, CountsInTheWordsOfItsTableAndSaysWhatAllowRefused) {
  LiveLedger live = ledger_of({proved("fused optimizer", {0.43, 0.38, 0.47}, 12), trial("bf16", Verdict::refused),
                               trial("denormals as 0", Verdict::refused), trial("arena", Verdict::inconclusive)});
  live.ledger.trials[1].reason = Reason::not_allowed;
  live.estimates[1].timed_only = true;
  const Report report = report_on(live);
  EXPECT_THAT(report.verdict, testing::EndsWith("; 1 change kept, 2 refused (1 by allow), 1 inconclusive."));
  EXPECT_EQ(std::count_if(report.changes.begin(), report.changes.end(),
                          [](const Report::Change& change) { return change.verdict == "refused"; }),
            2);
}

TEST(LiveReport, AFigureThatIsNotTheChangesOwnIsNotShownAndItsPairsAre) {
  LiveLedger live = ledger_of({trial("denormals as 0", Verdict::refused)});
  live.estimates[0].pairs = 6;  // And no gain.
  const Report report = report_on(live);
  EXPECT_FALSE(report.changes[0].gain || report.changes[0].gain_low);
  EXPECT_EQ(report.changes[0].pairs, 6);
  EXPECT_THAT(report_text(report, 100, false), testing::ContainsRegex("- refused +denormals as 0 +- +6\n"));
}

TEST(LiveReport, WhatNobodyMeasuresIsLeftOutAndOneSentenceSaysWhatDoes) {
  Report report = report_on(ledger_of({trial("arena for tensors", Verdict::inconclusive)}));
  const std::string sentence =
      "Not measured while a run tunes itself: samples a second, where the time of a step goes, memory. hr.watch "
      "measures these; of a recipe, headrace profile.";
  EXPECT_THAT(report_text(report, 200, false), HasSubstr(sentence));
  EXPECT_THAT(report_html(report), HasSubstr(sentence));
  report.changes[0].gain = 0.1;  // A row without one says so, and the page what it was measured on.
  report.command = "headrace.autotune(model)";
  report.environment = {{"CPU", "any"}};
  for (const std::string& page : {report_text(report, 200, false), report_html(report)}) {
    for (const char* left_out :
         {"navailable</span>", "navailable.", " unavailable\n", "diagnosis", "Diagnosis", "Memory", "From before"}) {
      EXPECT_THAT(page, Not(HasSubstr(left_out)));
    }
  }
  report.live = false;
  const std::string beside_it = report_text(report, 200, false);
  for (const char* part : {"before      unavailable", "test        unavailable", "diagnosis   unavailable",
                           "Where the time of a step goes\n  now: unavailable", "Memory\n  unavailable"}) {
    EXPECT_THAT(beside_it, HasSubstr(part));
  }
  EXPECT_THAT(beside_it, Not(HasSubstr("hr.watch")));
}

TEST(LiveReport, ASettingThatOnlyAChangeWouldHaveSetIsNotCalledRequested) {
  Report report = report_on(ledger_of({trial("fused optimizer", Verdict::inconclusive)}));
  report.settings = {{"optimizer.fused", "true", "false", report.changes[0].reason},
                     {"compute.allocator", "\"arena\"", "\"system\"", "no room"}};
  const std::string text = report_text(report, 200, false);
  EXPECT_THAT(text, Not(HasSubstr("optimizer.fused is")));
  EXPECT_THAT(text, HasSubstr("compute.allocator is \"system\", not \"arena\" as requested. no room"));
}

TEST(LiveReport, WhatARecipesRunDoesMeasureStays) {
  Report report = report_on(ledger_of({proved("fused optimizer", {0.43, 0.38, 0.47}, 12)}));
  report.test_accuracy = 0.91;
  report.memory.at_ns = {0};
  report.memory.resident = {5'000'000};
  for (const std::string& page : {report_text(report, 200, false), report_html(report)}) {
    EXPECT_THAT(page, HasSubstr("0.9100"));
    EXPECT_THAT(page, HasSubstr("5.0 MB"));
    EXPECT_THAT(page, HasSubstr("tunes itself: samples a second, where the time of a step goes. hr.watch"));
  }
}

TEST(LiveReport, HtmlAndTextHoldTheVerdictFirstAndTheNote) {
  const Report report = report_on(ledger_of({proved("fused optimizer", {0.43, 0.38, 0.47}, 12)}));
  const std::string text = report_text(report, 200, false);
  EXPECT_LT(text.find("1.43 times as fast"), text.find("400 updates seen"));
  EXPECT_THAT(report_html(report), HasSubstr("1.43 times as fast as the loop as written"));
  EXPECT_THAT(report_html(report), HasSubstr("400 updates seen"));
}

TEST(LiveReport, ItsDocumentIsALedgerThatReadsBackWithWhatTheReportSays) {
  const LiveLedger live = ledger_of({proved("fused optimizer", {0.43, 0.38, 0.47}, 12)});
  Report report = report_on(live);
  report.title = "loop";
  report.environment = {{"CPU", "any"}};
  report.not_tried = {{"cache", "data.cache", "there is no loader"}};
  report.settings = {{"compute.allocator", "\"arena\"", "\"system\"", "no room"}};
  const nlohmann::ordered_json document = live_document(live, report, "");
  EXPECT_EQ(json_text(parse_live_ledger(document.dump(), "written")), json_text(live));
  EXPECT_EQ(document["title"], "loop");
  EXPECT_EQ(document["environment"]["CPU"], "any");
  EXPECT_EQ(document["not_tried"][0]["reason"], "there is no loader");
  EXPECT_EQ(document["settings"][0]["applied"], "\"system\"");
  EXPECT_TRUE(document["problem"].is_null());
  EXPECT_EQ(live_document(live, report, "it broke")["problem"], "it broke");
}

}  // namespace
}  // namespace headrace
