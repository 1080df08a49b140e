#include "engine/verbs/train_online.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "app/knobs/strategy_library.h"
#include "core/base/files.h"
#include "engine/assembly/tuned_recipe.h"
#include "insight/tune/ledger_report.h"
#include "insight/tune/live_report.h"

namespace headrace {
namespace {

constexpr std::int64_t kLedgerBytesMax = 256LL << 20;

LiveProgress progress_on(Console& console) {
  const auto say = [&console](const std::string& line) {
    console.clear_progress();
    console.info(line);
  };
  LiveProgress progress;
  progress.began = [say](const std::string& sentence) { say("tuning while it trains: " + sentence); };
  progress.judged = [say](const Quietness& found) {
    if (!found.quiet.value_or(true)) say(found.sentence);
  };
  progress.preparing = say;
  progress.decided = [say](const Trial& trial) {
    say(fmt::format("{:<12} {}: {}", to_string(trial.verdict), trial.name, trial.sentence));
  };
  progress.ended = [say](const std::string& sentence) { say("the search is over: " + sentence); };
  return progress;
}

std::vector<std::string> names_kept(const Ledger& ledger) {
  std::vector<std::string> names;
  for (const Trial& trial : ledger.trials) {
    if (trial.verdict == Verdict::kept) names.push_back(trial.name);
  }
  return names;
}

std::string kept_text(const Ledger& ledger) {
  const std::vector<std::string> names = names_kept(ledger);
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

std::string replay_note(const LiveReplay& replay) {
  return fmt::format("Repeated from {}: {} of {} turns are applied, nothing was tried.", replay.source(),
                     replay.turns_applied(), replay.turns());
}

}  // namespace

Online make_online(VerbContext& context, Training& training, std::optional<LiveLedger> saved) {
  const TuneOptions& tune = context.loaded.recipe.tune;
  Online online;
  if (!tune.online && tune.replay.empty()) {
    if (saved) {
      context.console.warning(
          fmt::format("the run so far tuned itself and had kept {}; it goes on as the recipe is written, as "
                      "tune.online is false",
                      kept_text(saved->ledger)));
    }
    return online;
  }
  load_strategies(tune.strategies);
  if (!tune.replay.empty()) {
    LiveLedger ledger = parse_live_ledger(read_file(tune.replay, kLedgerBytesMax), tune.replay);
    online.replay = std::make_unique<OnlineReplay>(training, context.machine, std::move(ledger), tune.replay);
    return online;
  }
  const bool is_resumed = saved.has_value();
  const std::string kept = is_resumed ? kept_text(saved->ledger) : "";
  online.tuning =
      std::make_unique<OnlineTuning>(training, context.machine, progress_on(context.console), std::move(saved));
  if (is_resumed && online.tuning->tried() > 0) {
    context.console.info(fmt::format("tuning goes on with what was kept: {}; {} of {} changes are open", kept,
                                     online.tuning->tried(), online.tuning->offered().candidates.size()));
  }
  return online;
}

void undo_strategies(Console& console, const Online& online) {
  if (online.run() == nullptr) return;
  for (const auto& [key, why] : online.run()->undo_strategies()) console.warning(fmt::format("{}: {}", key, why));
}

void show_online(Report& report, nlohmann::ordered_json& document, const Online& online) {
  if (online.replay != nullptr) {
    const LiveReplay& replay = online.replay->replay();
    report.note = replay_note(replay);
    document["replay"] = {
        {"ledger", replay.source()}, {"turns_applied", replay.turns_applied()}, {"turns", replay.turns()}};
  }
  if (online.tuning == nullptr) return;
  const OnlineTuning& tuning = *online.tuning;
  const LiveLedger ledger = tuning.ledger();
  report.kind = Report::Kind::tuning;
  report.note = tuning.note();
  show_live_ledger(report, ledger, tuning.offered().candidates, "the recipe as written");
  report.not_tried = tuning.offered().not_tried;
  for (Applied& entry : settings_left_out(ledger.ledger)) report.settings.push_back(std::move(entry));
  document["tuning"] = {{"kept", names_kept(ledger.ledger)},
                        {"settings", ledger.ledger.best},
                        {"turns", ledger.turns.size()},
                        {"ended", ledger.ended},
                        {"end_reason", ledger.end_reason}};
  document["tuning"]["problem"] =
      tuning.problem().empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(tuning.problem());
}

void write_online(const std::filesystem::path& folder, const Online& online, const Recipe& recipe,
                  const Report& report) {
  if (online.replay != nullptr) {
    const LiveReplay& replay = online.replay->replay();
    nlohmann::ordered_json document = live_document(replay.ledger(), report, "");
    document["repeated"] = {
        {"ledger", replay.source()}, {"turns_applied", replay.turns_applied()}, {"turns", replay.turns()}};
    write_file(folder / "ledger.json", json_text(document));
  }
  if (online.tuning == nullptr) return;
  const LiveLedger ledger = online.tuning->ledger();
  write_file(folder / "ledger.json", json_text(live_document(ledger, report, online.tuning->problem())));
  Recipe tuned = tuned_recipe(recipe, ledger.ledger);
  tuned.tune.online = false;
  write_tuned_toml(folder / "tuned.toml", std::move(tuned), ledger.ledger);
}

std::string online_plan(const VerbContext& context, Training& training) {
  const TuneOptions& tune = context.loaded.recipe.tune;
  if (!tune.online) return "";
  load_strategies(tune.strategies);
  const OnlineTuning tuning{training, context.machine, {}};
  std::vector<std::string> names;
  for (const Candidate& candidate : tuning.offered().candidates) names.push_back(candidate.name);
  return fmt::format("; would try while it trains: {}",
                     names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace headrace
