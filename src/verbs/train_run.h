// Training from where a trainer stands to the recipe's last epoch, with tests, checkpoints and progress.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "assembly/training.h"
#include "cli/console.h"

namespace headrace {

struct EpochResult {
  std::int64_t epoch = 0;  // From 1, as people count.
  double loss = 0;         // Mean training loss of the batches run here.
  double test_loss = 0;
  double test_accuracy = 0;
  double seconds = 0;  // Training alone.
  double test_seconds = 0;
  double samples_per_second = 0;
  double finished_s = 0;  // Since the run began, tests included.
};

struct TrainRun {
  std::vector<EpochResult> epochs;
  double seconds = 0;  // From the call to the end, tests and checkpoints included.
  int stopped_by = 0;  // The signal that ended it early, after a checkpoint; 0: ran to the end.
};

// Error{invalid_argument} when the folder holds checkpoints, which --resume would take for this run's.
void refuse_earlier_checkpoints(const std::filesystem::path& folder);

// Checkpoints go to `folder` at each epoch's end and when a signal asks to stop.
TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console);

nlohmann::ordered_json to_json(const TrainRun& run);

}  // namespace headrace
