// tune.online and tune.replay in `headrace train`: what is said while it trains, and what the run's folder gets.
#pragma once

#include <headrace/live_tuner.h>
#include <headrace/report.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>
#include "engine/assembly/online_replay.h"
#include "engine/assembly/online_tuning.h"
#include "engine/verbs/verbs.h"

namespace headrace {

// What switches settings in a run; at most one of them.
struct Online {
  std::unique_ptr<OnlineTuning> tuning;
  std::unique_ptr<OnlineReplay> replay;

  OnlineRun* run() const {
    return tuning != nullptr ? static_cast<OnlineRun*>(tuning.get()) : static_cast<OnlineRun*>(replay.get());
  }
};

// What the recipe asks for, neither where it asks for nothing. `saved` is the ledger of the checkpoint from which the
// trainer was loaded; where the run goes on without it, a warning says so. Errors of OnlineTuning, of
// parse_live_ledger() and read_file(), and of LiveReplay.
Online make_online(VerbContext& context, Training& training, std::optional<LiveLedger> saved);

// Behind the run: undoes what strategies have changed, with a warning for each that cannot be undone.
void undo_strategies(Console& console, const Online& online);

// Puts what was tried and switched into a training's report and into result.json.
void show_online(Report& report, nlohmann::ordered_json& document, const Online& online);
// ledger.json, and of a run that tuned itself tuned.toml, which tries nothing.
void write_online(const std::filesystem::path& folder, const Online& online, const Recipe& recipe,
                  const Report& report);

// Of a run that would tune itself, what it would try; empty for another one.
std::string online_plan(const VerbContext& context, Training& training);

}  // namespace headrace
