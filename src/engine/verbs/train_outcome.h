// What a training run came to, and how it is told: result.json, one line, the report.
#pragma once

#include <headrace/report.h>
#include <headrace/trace.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "engine/verbs/train_alerts.h"
#include "engine/verbs/train_history.h"

namespace headrace {

struct TrainRun {
  std::vector<EpochResult> epochs;         // Of the whole run, those of earlier processes too.
  std::optional<TrainResult> result;       // nullopt: a signal ended it.
  double seconds = 0;                      // Of the whole run: see TrainHistory.
  int stopped_by = 0;                      // The signal that ended it, after a checkpoint; 0: ran to its end.
  bool stopped_early = false;              // train.early_stopping_patience ended it before the last epoch.
  std::int64_t checkpoints = 0;            // Written by this process,
  double checkpoint_seconds = 0;           // and the time that training stood still for them.
  std::int64_t out_of_memory = 0;          // Times that memory ran out and batches were cut, of the whole run.
  std::int64_t micro_batch = 0;            // Samples computed at once at its end, at most; 0: whole batches.
  std::vector<std::string> class_names{};  // In the order of the labels; empty: the data has none.
  std::optional<TraceRecord> steps{};      // The newest of this process; nullopt: nobody watched them.
  WatchedRun watched{};                    // By report.alerts and report.flights, in this process.
};

// "0.9132 (top 5: 0.9876)".
std::string accuracy_of(const Score& score);
// Which weights are the result, and why, a sentence.
std::string choice_text(const TrainResult& result);

nlohmann::ordered_json to_json(const TrainRun& run);
// "val_accuracy" and "test_accuracy" of the result, null where there is none, "val_top5_accuracy" and
// "test_top5_accuracy" where there are some, "choice", how it was chosen, and "class_names", where there are some.
void add_outcome(nlohmann::ordered_json& document, const TrainRun& run);
// "test accuracy 0.9132, val accuracy 0.9210 of epoch 3, the best of 4, stopped early": of a run that ended or was
// stopped.
std::string outcome_text(const TrainRun& run);
// Puts the result, the curves by epoch and the counts by class into the report; nothing without an epoch.
void show_training(Report& report, const TrainRun& run);

}  // namespace headrace
