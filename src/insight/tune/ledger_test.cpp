#include <headrace/error.h>
#include <headrace/tune.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "insight/tune/ledger_json.h"
#include "insight/tune/ledger_report.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

Ledger sample_ledger() {
  Ledger ledger;
  ledger.baseline = {{"optimizer.fused", "false"}};
  ledger.best = {{"optimizer.fused", "true"}};
  ledger.speedup = {1.44, 1.40, 1.48};
  ledger.speedup_pairs = 20;
  ledger.baseline_s = {0.0512, 0.0513};
  ledger.best_s = {0.0356, 0.0355};
  ledger.baseline_samples_per_second = 2500;
  ledger.best_samples_per_second = 3600;
  ledger.budget_s = 90;
  ledger.spent_s = 71.5;
  Trial kept;
  kept.name = "fused optimizer";
  kept.changes = {{"optimizer.fused", "true"}};
  kept.verdict = Verdict::kept;
  kept.sentence = "Pays.";
  kept.pairs = 2;
  kept.gain = Interval{0.2, 0.1, std::numeric_limits<double>::infinity()};
  kept.numerics = {NumericClass::rounding, true, true, 3e-7, 1e-6, "update"};
  kept.baseline_s = {0.05, 0.051};
  kept.candidate_s = {0.042, 0.0415};
  Trial failed;
  failed.name = "bf16";
  failed.verdict = Verdict::failed;
  failed.reason = Reason::error;
  failed.numerics.numeric_class = NumericClass::reduced_precision;
  ledger.trials = {kept, failed};
  return ledger;
}

TEST(Ledger, JsonHasTheKeysThatReadersRelyOn) {
  const auto json = to_json(sample_ledger());
  EXPECT_EQ(json["format"], "headrace-ledger");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["baseline"]["samples_per_second"], 2500.0);
  EXPECT_EQ(json["best"]["samples_per_second"], 3600.0);
  for (const char* key : {"median", "low", "high"}) EXPECT_TRUE(json["speedup"].contains(key)) << key;
  const auto& kept = json["trials"][0];
  EXPECT_EQ(kept["name"], "fused optimizer");
  EXPECT_EQ(kept["verdict"], "kept");
  EXPECT_EQ(kept["reason"], "none");
  EXPECT_EQ(kept["pairs"], 2);
  EXPECT_EQ(kept["gain"]["median"], 0.2);
  EXPECT_EQ(kept["numerics"]["class"], "rounding");
  EXPECT_EQ(kept["numerics"]["value"], 3e-7);
  EXPECT_EQ(kept["numerics"]["tolerance"], 1e-6);
  EXPECT_EQ(kept["baseline_s"].size(), 2u);
  EXPECT_EQ(json["trials"][1]["reason"], "error");
}

TEST(Ledger, WhatWasNotMeasuredIsNullInJson) {
  auto ledger = sample_ledger();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ledger.speedup = {nan, nan, nan};
  const auto json = ordered_json::parse(to_json(ledger).dump());
  EXPECT_TRUE(json["speedup"]["median"].is_null());
  EXPECT_TRUE(json["trials"][0]["gain"]["high"].is_null());
  EXPECT_TRUE(json["trials"][1]["gain"].is_null());
  EXPECT_TRUE(json["trials"][1]["numerics"]["value"].is_null());
}

TEST(Ledger, ReadsBackWhatItWrote) {
  const auto text = to_json(sample_ledger()).dump();
  const auto ledger = parse_ledger(text, "ledger.json");
  EXPECT_EQ(to_json(ledger).dump(), text);
  EXPECT_EQ(ledger.trials[0].changes, sample_ledger().trials[0].changes);
  EXPECT_TRUE(std::isnan(ledger.trials[0].gain->high));
  EXPECT_FALSE(ledger.trials[1].gain);
}

TEST(Ledger, ItsTextReadsBackWithBytesOfForeignExceptionsReplaced) {
  Ledger ledger = sample_ledger();
  ledger.trials[0].sentence = "thrown: \xff";
  const Ledger read = parse_ledger(json_text(ledger), "ledger.json");
  EXPECT_EQ(read.trials[0].sentence, "thrown: \xef\xbf\xbd");
  EXPECT_EQ(read.trials[0].changes, ledger.trials[0].changes);
}

void expect_refused(const std::string& text, ErrorCode code, const std::string& words) {
  try {
    parse_ledger(text, "runs/x/ledger.json");
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr("runs/x/ledger.json"));
    EXPECT_THAT(error.what(), testing::HasSubstr(words));
  }
}

TEST(Ledger, RefusesWhatIsNotALedgerAndNamesTheFile) {
  for (const char* text : {"", "{", "[]", "7", "null", "{}", "{\"format\": \"headrace-trace\", \"version\": 1}"}) {
    expect_refused(text, ErrorCode::corrupt_data, "headrace-ledger");
  }
}

TEST(Ledger, RefusesAnUnknownVersionByNumber) {
  auto json = to_json(sample_ledger());
  json["version"] = 2;
  expect_refused(json.dump(), ErrorCode::unsupported, "version 2");
}

TEST(Ledger, RefusesMissingKeysWrongTypesAndUnknownNames) {
  const auto whole = to_json(sample_ledger());
  for (const char* key : {"baseline", "best", "speedup", "trials", "spent_s"}) {
    auto json = whole;
    json.erase(key);
    expect_refused(json.dump(), ErrorCode::corrupt_data, "damaged");
    json = whole;
    json[key] = "text";
    expect_refused(json.dump(), ErrorCode::corrupt_data, "damaged");
  }
  auto json = whole;
  json["trials"][0]["verdict"] = "perhaps";
  expect_refused(json.dump(), ErrorCode::corrupt_data, "perhaps");
}

TEST(Ledger, EveryNameIsThatOfItsValue) {
  EXPECT_STREQ(to_string(NumericClass::reduced_precision), "reduced_precision");
  EXPECT_STREQ(to_string(Verdict::inconclusive), "inconclusive");
  EXPECT_STREQ(to_string(Reason::no_gain), "no_gain");
  EXPECT_STREQ(to_string(Reason::fixed), "fixed");
  EXPECT_STREQ(to_string(Reason::not_allowed), "not_allowed");
  EXPECT_STREQ(to_string(Reason::carries_over), "carries_over");
}

TEST(LedgerReport, TellsWhatWasTriedAndWhatCameOfIt) {
  const std::vector<Candidate> tried{{"fused optimizer", "One kernel for all parameters.", {}, {}, "compute"}};
  Report report;
  show_ledger(report, sample_ledger(), tried, "the script as written");
  EXPECT_TRUE(report.positive);
  EXPECT_EQ(report.verdict,
            "1.44 times as fast as the script as written; every kept change passed its numerics check.");
  EXPECT_EQ(report.speedup_low, 1.40);
  EXPECT_EQ(report.speedup_pairs, 20);
  EXPECT_EQ(report.best_samples_per_second, 3600);
  ASSERT_EQ(report.changes.size(), 2U);
  EXPECT_EQ(report.changes[0].sentence, "One kernel for all parameters.");
  EXPECT_EQ(report.changes[0].verdict, "kept");
  EXPECT_EQ(report.changes[0].gain, 0.2);
  EXPECT_EQ(report.changes[0].numerics, "update: 3e-07 (allowed 1e-06)");
  EXPECT_EQ(report.changes[0].settings.front().first, "optimizer.fused");
  EXPECT_EQ(report.changes[1].verdict, "failed");
  EXPECT_FALSE(report.changes[1].gain.has_value());
  EXPECT_EQ(report.changes[1].numerics, "");
}

Report report_on(const Ledger& ledger) {
  Report report;
  show_ledger(report, ledger, {}, "the recipe as written");
  return report;
}

TEST(LedgerReport, IsNotPositiveUnlessTheWholeIntervalIs) {
  Ledger ledger = sample_ledger();
  ledger.speedup = {1.02, 0.99, 1.05};
  const Report report = report_on(ledger);
  EXPECT_FALSE(report.positive);
  EXPECT_EQ(report.verdict,
            "What was kept is not proved to be faster than the recipe as written: +2.0 % (95 %: -1.0 % to +5.0 %, 20 "
            "pairs).");
  EXPECT_EQ(report.changes[0].sentence, "");
}

TEST(LedgerReport, WhatWasKeptAndNeverComparedIsNotCalledUseless) {
  Ledger ledger = sample_ledger();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ledger.speedup = {nan, nan, nan};
  ledger.speedup_pairs = 0;
  EXPECT_EQ(report_on(ledger).verdict,
            "What was kept was not compared with the recipe as written: a stop or the budget came first.");
}

TEST(LedgerReport, ShowsTheSplitsOfTheLastComparisonBothOrNeither) {
  Ledger ledger = sample_ledger();
  ledger.baseline_split = sum_steps({0.05}, {{}});
  EXPECT_FALSE(report_on(ledger).before || report_on(ledger).after);
  ledger.best_split = sum_steps({0.04}, {{}});
  const Report report = report_on(ledger);
  ASSERT_TRUE(report.before && report.after);
  EXPECT_EQ(report.before->total_s, 0.05);
  EXPECT_EQ(report.after->total_s, 0.04);
}

// A ledger.json of three trials as the tuner stores it; `open` are the verdict, reason, sentence, pairs and gain of the
// first.
std::string stored_ledger(const std::string& open) {
  return R"({"format": "headrace-ledger", "version": 1,
    "baseline": {"samples_per_second": 850.0, "settings": {"optimizer.fused": "\"plain\""}},
    "best": {"samples_per_second": 850.0, "settings": {}},
    "speedup": {"median": 1.0, "low": 1.0, "high": 1.0, "pairs": 0}, "budget_s": 20.0, "spent_s": 20.1,
    "trials": [
      {"name": "fused optimizer", )" +
         open + R"(,
       "numerics": {"class": "rounding", "checked": true, "passed": true, "value": 1.2e-8, "tolerance": 1e-6,
                    "measure": "update, relative L2"},
       "changes": {"optimizer.fused": "true"}, "removed_again": false, "baseline_s": [], "candidate_s": []},
      {"name": "num_workers 2", "verdict": "inconclusive", "reason": "budget",
       "sentence": "The budget of 20 s was used up before a pair was measured.", "pairs": 0, "gain": null,
       "numerics": {"class": "bit_equal", "checked": false, "passed": false, "value": null, "tolerance": null,
                    "measure": ""},
       "changes": {"data.num_workers": "2"}, "removed_again": false, "baseline_s": [], "candidate_s": []},
      {"name": "channels-last", "verdict": "refused", "reason": "slower", "sentence": "Slower: -7.5 %.", "pairs": 6,
       "gain": {"median": -0.075, "low": -0.09, "high": -0.06},
       "numerics": {"class": "rounding", "checked": true, "passed": true, "value": 1.2e-8, "tolerance": 1e-6,
                    "measure": "loss, relative"},
       "changes": {"model.memory_format": "\"channels_last\""}, "removed_again": false, "baseline_s": [],
       "candidate_s": []}]})";
}

constexpr const char* kUndecided = R"("verdict": "inconclusive", "reason": "budget",
  "sentence": "Not decided when its share of the budget was used up: +3.1 % (95 %: -0.4 % to +6.8 %, 11 pairs).",
  "pairs": 11, "gain": {"median": 0.031, "low": -0.004, "high": 0.068})";
constexpr const char* kKept = R"("verdict": "kept", "reason": "none", "sentence": "Pays: +19.8 %.", "pairs": 12,
  "gain": {"median": 0.198, "low": 0.179, "high": 0.216})";
constexpr const char* kRefused = R"("verdict": "refused", "reason": "no_gain", "sentence": "Gains less than 2.0 %.",
  "pairs": 20, "gain": {"median": 0.001, "low": -0.004, "high": 0.006})";
constexpr const char* kFixed = R"("verdict": "refused", "reason": "fixed",
  "sentence": "Not tried: tune.fixed protects optimizer.fused.", "pairs": 0, "gain": null)";
constexpr const char* kFailed = R"("verdict": "failed", "reason": "error", "sentence": "Failed: no such kernel.",
  "pairs": 0, "gain": null)";

Report report_on_stored(const std::string& open) {
  return report_on(parse_ledger(stored_ledger(open), "ledger.json"));
}

TEST(LedgerReport, SaysHowManyChangesStayedUndecidedAndWhichLooksBest) {
  EXPECT_EQ(report_on_stored(kUndecided).verdict,
            "No change was proved to pay; 2 of 3 changes stayed undecided; of these fused optimizer looks best: +3.1 % "
            "(95 %: -0.4 % to +6.8 %, 11 pairs).");
  EXPECT_EQ(report_on_stored(kRefused).verdict,
            "No change was proved to pay; 1 of 3 changes stayed undecided, without a measured pair.");
  Ledger ledger = parse_ledger(stored_ledger(kUndecided), "ledger.json");
  std::swap(ledger.trials[0], ledger.trials[1]);
  ledger.trials.front() = ledger.trials[2];
  EXPECT_EQ(
      report_on(ledger).verdict,
      "No change was proved to pay; 1 of 3 changes stayed undecided: fused optimizer, +3.1 % (95 %: -0.4 % to +6.8 "
      "%, 11 pairs).");
}

TEST(LedgerReport, SaysThatNoChangePaysOnlyWhereEveryOneWasJudged) {
  Ledger ledger = parse_ledger(stored_ledger(kRefused), "ledger.json");
  std::erase_if(ledger.trials, [](const Trial& trial) { return trial.verdict == Verdict::inconclusive; });
  EXPECT_EQ(report_on(ledger).verdict,
            "No change paid: the recipe as written is as fast as these changes can make it here.");
  ledger.trials.resize(2);
  ledger.trials[0].verdict = Verdict::failed;
  ledger.trials[1].verdict = Verdict::refused;
  ledger.trials[1].reason = Reason::fixed;
  EXPECT_EQ(report_on(ledger).verdict,
            "No change that could be judged paid; of 2, 1 failed and tune.fixed protects 1.");
  ledger.trials.clear();
  EXPECT_EQ(report_on(ledger).verdict, "No change was tried on the recipe as written.");
}

TEST(LedgerReport, AdviceDoesNotCallUntriedWhatTheLedgerHolds) {
  const Finding slow{"optimizer_slow",
                     "The optimizer takes 28 % of a step.",
                     "Try optimizer.fused = true.",
                     {{"Try optimizer.fused = true.", {"optimizer.fused"}}}};
  const std::string lead = "optimizer.fused = true: ";
  for (const auto& [stored, said] : std::vector<std::pair<std::string, std::string>>{
           {kKept, "kept, +19.8 % [+17.9 %, +21.6 %]."},
           {kRefused, "refused. Gains less than 2.0 %."},
           {kFixed, "refused. Not tried: tune.fixed protects optimizer.fused."},
           {kFailed, "failed. Failed: no such kernel."},
           {kUndecided,
            "inconclusive, +3.1 % [-0.4 %, +6.8 %] after 11 pairs. A larger budget than 20 s gives more pairs."}}) {
    Report report = report_on_stored(stored);
    report.findings = {slow};
    EXPECT_EQ(advice_left(report)[0].advice, lead + said);
    for (const std::string& text : {report_text(report, 400, false), report_html(report)}) {
      EXPECT_THAT(text, testing::Not(testing::HasSubstr("Try optimizer")));
    }
  }
}

TEST(LedgerReport, OfASinglePairThereIsNoInterval) {
  Ledger ledger = sample_ledger();
  EXPECT_FALSE(report_on(ledger).changes[0].gain_low.has_value());
  EXPECT_EQ(report_on(ledger).changes[0].gain, 0.2);
}

TEST(Ledger, TellsWhetherTheMachineWasQuietAndWhatDecidedOnRounding) {
  auto ledger = sample_ledger();
  ledger.quietness.quiet = false;
  ledger.quietness.sentence = "This machine is not quiet: ...";
  ledger.quietness.scatter = 0.2;
  ledger.quietness.others = 0.5;
  ledger.quietness.candidates_held = 2;
  ledger.trials[0].numerics.baseline_error = 1e-7;
  ledger.trials[1].numerics.why_not_float64 = "no kernel";
  const auto json = to_json(ledger);
  EXPECT_EQ(json["quietness"]["quiet"], false);
  EXPECT_EQ(json["quietness"]["scatter"], 0.2);
  EXPECT_TRUE(json["quietness"]["pressure"].is_null());  // Unavailable, never 0.
  EXPECT_EQ(json["trials"][0]["numerics"]["baseline_error"], 1e-7);
  EXPECT_TRUE(json["trials"][1]["numerics"]["baseline_error"].is_null());
  const auto read = parse_ledger(json.dump(), "ledger.json");
  EXPECT_EQ(read.quietness.quiet, false);
  EXPECT_EQ(read.quietness.others, 0.5);
  EXPECT_FALSE(read.quietness.pressure);
  EXPECT_EQ(read.quietness.candidates_held, 2);
  EXPECT_EQ(read.trials[0].numerics.baseline_error, 1e-7);
  EXPECT_EQ(read.trials[1].numerics.why_not_float64, "no kernel");
}

TEST(Ledger, OneFromBeforeTheMachineWasJudgedIsRead) {
  auto json = to_json(sample_ledger());
  json.erase("quietness");
  for (auto& trial : json["trials"]) {
    trial["numerics"].erase("baseline_error");
    trial["numerics"].erase("why_not_float64");
  }
  const auto ledger = parse_ledger(json.dump(), "ledger.json");
  EXPECT_FALSE(ledger.quietness.quiet);
  EXPECT_FALSE(ledger.trials[0].numerics.baseline_error);
}

TEST(Ledger, ChangesLeftOutAreSettingsThatWereAskedForAndNotApplied) {
  auto ledger = sample_ledger();
  ledger.trials[1].reason = Reason::not_quiet;
  ledger.trials[1].sentence = "Not tried: the machine is not quiet.";
  ledger.trials[1].changes = {{"compute.intra_op_threads", "1"}};
  ledger.baseline["compute.intra_op_threads"] = "2";
  const auto list = settings_left_out(ledger);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].key, "compute.intra_op_threads");
  EXPECT_EQ(list[0].requested, "1");
  EXPECT_EQ(list[0].applied, "2");
  EXPECT_EQ(list[0].reason, ledger.trials[1].sentence);
}

TEST(Ledger, AReportTellsFirstThatTheMachineWasNotQuiet) {
  auto ledger = sample_ledger();
  ledger.quietness.quiet = false;
  ledger.quietness.sentence = "This machine is not quiet: others take 50 per cent.";
  Report report;
  show_ledger(report, ledger, {}, "the recipe as written");
  const std::string text = report_text(report, 100, false);
  EXPECT_THAT(text, testing::HasSubstr("others take 50 per cent"));
  EXPECT_LT(text.find("not quiet"), text.find("before"));
  EXPECT_THAT(report_html(report), testing::HasSubstr("others take 50 per cent"));
  ledger.quietness.quiet = true;
  Report quiet;
  show_ledger(quiet, ledger, {}, "the recipe as written");
  EXPECT_TRUE(quiet.disturbance.empty());
}

}  // namespace
}  // namespace headrace
