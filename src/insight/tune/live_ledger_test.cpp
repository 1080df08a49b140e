#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/live_tuner.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

LiveLedger sample_ledger() {
  LiveLedger live;
  Trial kept;
  kept.name = "fused optimizer";
  kept.changes = {{"optimizer.fused", "true"}};
  kept.verdict = Verdict::kept;
  kept.pairs = 12;
  kept.gain = Interval{0.2, 0.1, 0.3};
  Trial timed;
  timed.name = "bf16";
  timed.verdict = Verdict::refused;
  timed.reason = Reason::not_allowed;
  live.ledger.trials = {kept, timed};
  live.ledger.best = {{"optimizer.fused", "true"}};
  live.turns = {{27, {{"optimizer.fused", "true"}}, "pair 1, race, first block"}, {29, {}, "pair 1, second block"}};
  live.estimates.resize(2);
  live.estimates[0] = {
      Interval{0.25, 0.1, std::numeric_limits<double>::infinity()}, 9, 143.5, 0.01, std::nullopt, false};
  live.estimates[1].timed_only = true;
  live.estimates[1].pairs_needed = 40;
  live.updates = 400;
  live.counted_units = 380;
  live.lost_s = -12.5;
  live.lost_most_s = 4.25;
  live.lost_allowed_s = 31;
  live.ended = true;
  live.end_reason = "every change is looked at";
  return live;
}

TEST(LiveLedger, ReadsBackWhatItWrote) {
  const std::string text = json_text(sample_ledger());
  const LiveLedger read = parse_live_ledger(text, "ledger.json");
  EXPECT_EQ(json_text(read), text);
  EXPECT_EQ(read.turns[0].settings, sample_ledger().turns[0].settings);
  EXPECT_EQ(read.turns[1].update, 29);
  EXPECT_EQ(read.estimates[0].pairs, 9);
  EXPECT_EQ(read.estimates[1].pairs_needed, 40);
  EXPECT_FALSE(read.estimates[1].gain);
  EXPECT_EQ(read.ledger.trials[1].reason, Reason::not_allowed);
  EXPECT_EQ(read.lost_s, -12.5);
}

TEST(LiveLedger, AReasonThatLiveRunsAloneHaveReadsBack) {
  LiveLedger live = sample_ledger();
  live.ledger.trials[1].reason = Reason::carries_over;
  EXPECT_EQ(parse_live_ledger(json_text(live), "ledger.json").ledger.trials[1].reason, Reason::carries_over);
}

TEST(LiveLedger, JsonHasTheKeysThatReadersRelyOn) {
  const auto json = ordered_json::parse(json_text(sample_ledger()));
  EXPECT_EQ(json["format"], "headrace-live-ledger");
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["ledger"]["trials"][0]["name"], "fused optimizer");
  EXPECT_EQ(json["turns"][0]["why"], "pair 1, race, first block");
  EXPECT_EQ(json["turns"][0]["settings"]["optimizer.fused"], "true");
  EXPECT_TRUE(json["turns"][1]["settings"].is_object());
  EXPECT_EQ(json["estimates"][1]["timed_only"], true);
  EXPECT_EQ(json["lost_allowed_s"], 31.0);
}

TEST(LiveLedger, NumbersThatAreNotFiniteAreNullAndReadAsNaN) {
  LiveLedger live = sample_ledger();
  live.lost_s = std::numeric_limits<double>::quiet_NaN();
  const auto json = ordered_json::parse(json_text(live));
  EXPECT_TRUE(json["lost_s"].is_null());
  EXPECT_TRUE(json["estimates"][0]["gain"]["high"].is_null());
  const LiveLedger read = parse_live_ledger(json.dump(), "ledger.json");
  EXPECT_TRUE(std::isnan(read.lost_s));
  EXPECT_TRUE(std::isnan(read.estimates[0].gain->high));
}

std::string refused(ErrorCode code, const std::string& text) {
  return error_of(code, [&] { parse_live_ledger(text, "runs/x/ledger.json"); });
}

TEST(LiveLedger, RefusesWhatIsNotOneAndNamesTheFile) {
  for (const char* text : {"", "{", "[]", "7", "null", "{}", "{\"format\": \"headrace-ledger\", \"version\": 1}"}) {
    EXPECT_THAT(refused(ErrorCode::corrupt_data, text), HasSubstr("runs/x/ledger.json is not a live ledger")) << text;
  }
}

TEST(LiveLedger, RefusesAnUnknownVersionByNumber) {
  auto json = ordered_json::parse(json_text(sample_ledger()));
  json["version"] = 2;
  EXPECT_EQ(refused(ErrorCode::unsupported, json.dump()),
            "tune: runs/x/ledger.json has live ledger version 2, known here is 1");
}

TEST(LiveLedger, RefusesMissingKeysAndWrongTypes) {
  const auto whole = ordered_json::parse(json_text(sample_ledger()));
  for (const char* key : {"ledger", "turns", "estimates", "updates", "lost_s", "ended", "end_reason"}) {
    auto json = whole;
    json.erase(key);
    EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("runs/x/ledger.json")) << key;
    json[key] = ordered_json::parse("[[7]]");
    EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("runs/x/ledger.json")) << key;
  }
}

TEST(LiveLedger, RefusesListsThatAreTooLongOrDoNotFitTogether) {
  auto json = ordered_json::parse(json_text(sample_ledger()));
  json["estimates"].erase(1);
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("2 trials, 1 estimates"));
  json = ordered_json::parse(json_text(sample_ledger()));
  const auto turn = json["turns"][0];
  while (json["turns"].size() <= LiveLedger::kTurnsMax) json["turns"].push_back(turn);
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("at most 8192 turns, found 8193"));
}

TEST(LiveLedger, SaysWhatElseItFound) {
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json_text(Ledger())), HasSubstr("found format \"headrace-ledger\""));
  EXPECT_THAT(refused(ErrorCode::corrupt_data, "[]"), HasSubstr("found JSON of type array"));
  EXPECT_THAT(refused(ErrorCode::corrupt_data, "{}"), HasSubstr("found one without a format"));
  const std::string whole = json_text(sample_ledger());
  EXPECT_THAT(refused(ErrorCode::corrupt_data, whole.substr(0, whole.size() / 2)), HasSubstr("no whole JSON document"));
}

TEST(LiveLedger, NamesTheTurnThatIsDamaged) {
  const auto whole = ordered_json::parse(json_text(sample_ledger()));
  auto json = whole;
  json["turns"][1]["why"] = 7;
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("turns[1]: "));
  json = whole;
  json["turns"][1]["settings"]["optimizer.fused"] = true;  // Settings are texts.
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("turns[1]: "));
  json = whole;
  json["turns"][1]["update"] = 26;  // Before the turn before it.
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()),
              HasSubstr("turns[1].update: wanted at least 27, found 26"));
  json = whole;
  json["turns"][0]["update"] = 0;
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("turns[0].update: wanted at least 1, found 0"));
  json = whole;
  json.erase("turns");
  EXPECT_THAT(refused(ErrorCode::corrupt_data, json.dump()), HasSubstr("turns is missing"));
}

TEST(LiveLedger, KeysThatAreNotKnownAreLeftOut) {
  auto json = ordered_json::parse(json_text(sample_ledger()));
  json["title"] = "training loop";
  EXPECT_EQ(json_text(parse_live_ledger(json.dump(), "ledger.json")), json_text(sample_ledger()));
}

}  // namespace
}  // namespace headrace
