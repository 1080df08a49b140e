#include "insight/tune/live_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "insight/tune/comparison.h"
#include "insight/tune/ledger_report.h"
#include "insight/tune/live_course.h"

namespace headrace {
namespace {

using LiveEstimate = LiveLedger::Estimate;

// Of the trial at `index`; a ledger of which a part is missing has none.
LiveEstimate estimate_of(const LiveLedger& ledger, std::size_t index) {
  return index < ledger.estimates.size() ? ledger.estimates[index] : LiveEstimate{};
}

// That `allow` is why it was never in force, and nothing else.
bool is_forbidden(const LiveLedger& ledger, std::size_t index) {
  const Reason reason = ledger.ledger.trials[index].reason;
  return estimate_of(ledger, index).timed_only && (reason == Reason::not_allowed || reason == Reason::none);
}

bool is_open(const LiveLedger& ledger, std::size_t index) {
  return ledger.ledger.trials[index].verdict == Verdict::inconclusive && !is_forbidden(ledger, index);
}

// A gain that was measured, and in how many pairs.
struct Measured {
  Interval gain;
  std::int64_t pairs = 0;
  bool is_proof = false;  // The change alone, and not while others took turns, too.
};

std::optional<Measured> measured_of(const LiveLedger& ledger, std::size_t index) {
  const Trial& trial = ledger.ledger.trials[index];
  if (trial.gain && std::isfinite(trial.gain->median)) return Measured{*trial.gain, trial.pairs, true};
  const LiveEstimate estimate = estimate_of(ledger, index);
  if (estimate.gain && std::isfinite(estimate.gain->median)) return Measured{*estimate.gain, estimate.pairs, false};
  return std::nullopt;
}

// Of all that was kept over the loop as written: the pairs that compared them, or the proof of the only change that was
// ever kept. nullopt: no pairs did.
std::optional<Measured> speedup_of(const Ledger& ledger) {
  if (ledger.best.empty()) return std::nullopt;
  if (ledger.speedup_pairs > 0 && std::isfinite(ledger.speedup.median)) {
    return Measured{ledger.speedup, ledger.speedup_pairs, true};
  }
  const Trial* only = nullptr;
  for (const Trial& trial : ledger.trials) {
    if (trial.removed_again) return std::nullopt;
    if (trial.verdict != Verdict::kept) continue;
    if (only != nullptr) return std::nullopt;
    only = &trial;
  }
  if (only == nullptr || !only->gain) return std::nullopt;
  return Measured{{1 + only->gain->median, 1 + only->gain->low, 1 + only->gain->high}, only->pairs, true};
}

std::string counted(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// "1 change kept, 2 refused (1 by allow), 3 inconclusive": in the words of the table below it.
std::string counts_of(const LiveLedger& ledger) {
  std::map<Verdict, std::int64_t> counts;
  std::int64_t forbidden = 0;
  for (std::size_t i = 0; i < ledger.ledger.trials.size(); ++i) {
    const bool by_allow = is_forbidden(ledger, i);
    forbidden += by_allow;
    ++counts[by_allow ? Verdict::refused : ledger.ledger.trials[i].verdict];
  }
  std::string text = counted(counts[Verdict::kept], "change") + " kept";
  for (const Verdict verdict : {Verdict::refused, Verdict::failed, Verdict::inconclusive}) {
    if (counts[verdict] > 0) text += fmt::format(", {} {}", counts[verdict], to_string(verdict));
    if (verdict == Verdict::refused && forbidden > 0) text += fmt::format(" ({} by allow)", forbidden);
  }
  return text;
}

std::string kept_text(const Ledger& ledger) {
  std::string text;
  for (const Trial& trial : ledger.trials) {
    if (trial.verdict != Verdict::kept) continue;
    text += text.empty() ? trial.name : "; " + trial.name;
    if (trial.gain) text += ", " + gain_text(*trial.gain, trial.pairs);
  }
  return text;
}

// The open changes, and which of them looks best.
std::string open_text(const LiveLedger& ledger) {
  std::int64_t open = 0;
  std::optional<Measured> best;
  std::string name;
  for (std::size_t i = 0; i < ledger.ledger.trials.size(); ++i) {
    if (!is_open(ledger, i)) continue;
    ++open;
    const std::optional<Measured> measured = measured_of(ledger, i);
    if (!measured || (best && best->gain.median >= measured->gain.median)) continue;
    best = measured;
    name = ledger.ledger.trials[i].name;
  }
  const std::string count =
      fmt::format("{} of {} inconclusive", open, counted(std::ssize(ledger.ledger.trials), "change"));
  if (!best) return count + ", without a measured pair";
  return fmt::format("{}; {} looks best: {}", count, name, gain_text(best->gain, best->pairs));
}

std::string why_ended(const LiveLedger& ledger) {
  if (!ledger.ended) return "the search is under way";
  return ledger.end_reason.empty() ? "the search is over" : "the search is over: " + ledger.end_reason;
}

std::string verdict_of(const LiveLedger& live, const std::optional<Measured>& speedup, std::string_view subject) {
  const Ledger& ledger = live.ledger;
  if (speedup && speedup->gain.low > 1) {
    return fmt::format("{:.2f} times as fast as {}, proved in {}; {}.", speedup->gain.median, subject,
                       counted(speedup->pairs, "pair"), counts_of(live));
  }
  if (speedup) {
    const Interval gain{speedup->gain.median - 1, speedup->gain.low - 1, speedup->gain.high - 1};
    return fmt::format("What was kept is not proved to be faster than {}: {}; {}.", subject,
                       gain_text(gain, speedup->pairs), counts_of(live));
  }
  if (!ledger.best.empty()) {
    return fmt::format("{}, each alone against the best before it ({}); all together were not compared with {}.",
                       counts_of(live), kept_text(ledger), subject);
  }
  if (ledger.trials.empty()) return fmt::format("No change was tried on {}: {}.", subject, why_ended(live));
  bool any_open = false;
  for (std::size_t i = 0; i < ledger.trials.size(); ++i) any_open = any_open || is_open(live, i);
  if (any_open) return fmt::format("No change was proved to pay; {}.", open_text(live));
  return fmt::format("No change paid: {} is as fast as the changes that may be tried make it here.", subject);
}

// What the search cost, by the loop's own units; of none that counted, nothing in seconds.
std::string cost_text(const LiveLedger& ledger, std::string_view subject) {
  const std::int64_t unlike = ledger.updates - ledger.counted_units;
  const std::string why_fewer =
      unlike > 0 && ledger.counted_units > 0
          ? fmt::format(" ({} {} unlike the others, as with an evaluation or at an epoch's end)", unlike,
                        unlike == 1 ? "was" : "were")
          : std::string();
  const std::string text =
      fmt::format("{} seen, {} of them timed{}, settings changed {}; {}.", counted(ledger.updates, "update"),
                  ledger.counted_units, why_fewer, counted(std::ssize(ledger.turns), "time"), why_ended(ledger));
  if (ledger.counted_units == 0) return text;
  const char* side = ledger.lost_s > 0 ? "behind" : "ahead of";
  return text + fmt::format(
                    " By the times of its own updates the run is now {:.1f} s {} {}; it was at most {:.1f} s behind, "
                    "where {:.1f} s are allowed.",
                    std::abs(ledger.lost_s), side, subject, std::max(0.0, ledger.lost_most_s), ledger.lost_allowed_s);
}

// Updates that a pair takes, both of its blocks with what is not measured: twice the middle of the turns' lengths.
// nullopt: no turn has ended.
std::optional<std::int64_t> updates_a_pair(const LiveLedger& ledger) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 1; i < ledger.turns.size(); ++i) {
    const std::int64_t length = ledger.turns[i].update - ledger.turns[i - 1].update;
    if (length > 0) lengths.push_back(length);
  }
  if (lengths.empty()) return std::nullopt;
  const auto middle = lengths.begin() + std::ssize(lengths) / 2;
  std::nth_element(lengths.begin(), middle, lengths.end());
  return 2 * *middle;
}

// What would decide an open change; empty: nobody can tell.
std::string needed_text(const LiveLedger& ledger, const LiveEstimate& estimate) {
  if (!estimate.pairs_needed || *estimate.pairs_needed <= 0) return {};
  std::string text = fmt::format("About {} more would decide it", counted(*estimate.pairs_needed, "pair"));
  if (const auto updates = updates_a_pair(ledger)) {
    text += fmt::format(", {} at the pace so far", counted(*estimate.pairs_needed * *updates, "update"));
  }
  return text + ".";
}

// Of a change that the user forbids, what would let it be tried.
std::string needed_allow(const Trial& trial, std::span<const Candidate> candidates) {
  const auto candidate =
      std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.name == trial.name; });
  const NumericClass needed = candidate == candidates.end() ? trial.numerics.numeric_class : candidate->numerics;
  return fmt::format("allow = \"{}\"", to_string(needed));
}

void add_sentence(std::string& text, const std::string& sentence) {
  if (sentence.empty()) return;
  text += (text.empty() ? "" : " ") + sentence;
}

// What a live run knows of a change beyond its trial.
void complete(Report::Change& change, const LiveLedger& ledger, std::size_t index,
              std::span<const Candidate> candidates) {
  const Trial& trial = ledger.ledger.trials[index];
  const std::optional<Measured> measured = measured_of(ledger, index);
  if (!measured) change.pairs = estimate_of(ledger, index).pairs;  // Whose figure is not the change's own.
  if (measured && !measured->is_proof) {
    change.gain = measured->gain.median;
    change.pairs = measured->pairs;
    if (std::isfinite(measured->gain.high)) {
      change.gain_low = measured->gain.low;
      change.gain_high = measured->gain.high;
    }
  }
  if (is_forbidden(ledger, index)) {
    change.verdict = to_string(Verdict::refused);  // Whatever it gains: it is not open.
    add_sentence(change.reason, fmt::format("It needs {}.", needed_allow(trial, candidates)));
    return;
  }
  if (trial.verdict == Verdict::inconclusive) {
    add_sentence(change.reason, needed_text(ledger, estimate_of(ledger, index)));
  }
}

// The pairs behind the speedup, where that is the proof of the only change that was kept.
void show_only_proof(Report& report, std::size_t first) {
  for (std::size_t i = first; i < report.changes.size(); ++i) {
    if (report.changes[i].verdict != to_string(Verdict::kept)) continue;
    for (const double gain : report.changes[i].pair_gains) report.speedup_ratios.push_back(1 + gain);
  }
}

// Changes that the user forbids and that were faster where they were timed.
std::vector<Finding> forbidden_gains(const LiveLedger& ledger, std::span<const Candidate> candidates) {
  std::vector<Finding> findings;
  for (std::size_t i = 0; i < ledger.ledger.trials.size(); ++i) {
    const Trial& trial = ledger.ledger.trials[i];
    const std::optional<Measured> measured = measured_of(ledger, i);
    if (!is_forbidden(ledger, i) || !measured || !(measured->gain.low > 0)) continue;
    findings.push_back({"change_forbidden",
                        fmt::format("{} gained {} on kept calls, where it was only timed.", trial.name,
                                    gain_text(measured->gain, measured->pairs)),
                        fmt::format("With {} it is tried.", needed_allow(trial, candidates))});
  }
  return findings;
}

}  // namespace

void show_live_ledger(Report& report, const LiveLedger& ledger, std::span<const Candidate> candidates,
                      std::string_view subject) {
  const std::size_t first = report.changes.size();
  show_ledger(report, ledger.ledger, candidates, subject);
  report.live = true;
  report.budget_s.reset();  // There is none: what may be lost is in the note.
  const std::optional<Measured> speedup = speedup_of(ledger.ledger);
  report.verdict = verdict_of(ledger, speedup, subject);
  report.positive = speedup && speedup->gain.low > 1;
  report.speedup = speedup ? speedup->gain.median : 0;
  report.speedup_low = speedup ? speedup->gain.low : 0;
  report.speedup_high = speedup ? speedup->gain.high : 0;
  report.speedup_pairs = speedup ? speedup->pairs : 0;
  if (speedup && ledger.ledger.speedup_pairs == 0) show_only_proof(report, first);
  add_sentence(report.note, cost_text(ledger, subject));
  report.course = course_of(ledger);
  for (std::size_t i = 0; i < ledger.ledger.trials.size(); ++i) {
    complete(report.changes[first + i], ledger, i, candidates);
  }
  for (Finding& finding : forbidden_gains(ledger, candidates)) report.findings.push_back(std::move(finding));
}

nlohmann::ordered_json live_document(const LiveLedger& ledger, const Report& report, std::string_view problem) {
  using nlohmann::ordered_json;
  ordered_json document = ordered_json::parse(json_text(ledger));
  document["title"] = report.title;
  document["command"] = report.command;
  document["written"] = report.written;
  document["problem"] = problem.empty() ? ordered_json(nullptr) : ordered_json(problem);
  for (const auto& [name, value] : report.environment) document["environment"][name] = value;
  document["not_tried"] = ordered_json::array();
  for (const Report::NotTried& change : report.not_tried) {
    document["not_tried"].push_back({{"name", change.name}, {"key", change.key}, {"reason", change.reason}});
  }
  document["settings"] = ordered_json::array();
  for (const Applied& applied : report.settings) {
    document["settings"].push_back({{"key", applied.key},
                                    {"requested", applied.requested},
                                    {"applied", applied.applied},
                                    {"reason", applied.reason}});
  }
  return document;
}

}  // namespace headrace
