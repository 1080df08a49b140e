// What a training run has behind it: in result.json for people, in checkpoints for the process that goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

struct EpochResult {
  std::int64_t epoch = 0;  // From 1, as people count.
  double loss = 0;         // Mean training loss over the epoch's samples.
  double test_loss = 0;
  double test_accuracy = 0;
  double seconds = 0;  // Training alone.
  double test_seconds = 0;
  double samples_per_second = 0;
  double finished_s = 0;  // Since the run began, tests and checkpoints included.
};

// Times are of the work that the state holds: what a killed process did after its last checkpoint is done again and
// counted once, and no time passes between two processes. No wall clock.
struct TrainHistory {
  std::vector<EpochResult> epochs;  // The finished ones.
  double seconds = 0;               // Since the run began.
  double epoch_seconds = 0;         // Training in the epoch that is not finished.
  bool evaluation_due = false;      // Its last step is done, its evaluation is not.
};

nlohmann::ordered_json to_json(const EpochResult& epoch);

// The history as a checkpoint carries it; numbers come back bit for bit. evaluation_due is the checkpoint's own.
std::string history_text(const TrainHistory& history);
// Error{corrupt_data} names `path`, the checkpoint.
TrainHistory parse_history(const std::string& text, bool evaluation_due, const std::filesystem::path& path);

}  // namespace headrace
