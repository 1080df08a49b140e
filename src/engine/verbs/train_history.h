// What a training run has behind it: in result.json for people, in checkpoints for the process that goes on.
#pragma once

#include <headrace/trainer.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

// Of one reading of a split.
struct Score {
  double loss = 0;
  double accuracy = 0;
  std::optional<double> top5_accuracy;  // nullopt: at most five classes, or a run of an earlier version.
  double seconds = 0;
  std::vector<ClassCounts> classes{};  // Empty: unavailable, as of a run of an earlier version.
};

struct EpochResult {
  std::int64_t epoch = 0;    // From 1, as people count.
  double loss = 0;           // Mean training loss over the epoch's samples.
  std::optional<Score> val;  // nullopt: the data has no such split.
  // Of a run that an earlier version began, which read test after each epoch.
  std::optional<Score> test;
  double seconds = 0;  // Training alone.
  double samples_per_second = 0;
  double finished_s = 0;  // Since the run began, evaluations and checkpoints included.
};

// The epoch whose weights are those of the run.
struct TrainResult {
  std::int64_t epoch = 0;
  std::optional<Score> val;     // By which it was chosen, unless it is a mean; nullopt: nothing was, it is the last.
  std::optional<Score> test;    // Read once, with these weights; nullopt: the data has no such split.
  std::int64_t swa_epochs = 0;  // The weights are the mean of so many epochs, `epoch` being the last; 0: no mean.
};

// The mean that train.swa_start keeps, beside its tensors.
struct SwaHistory {
  std::int64_t first = 0;   // The first epoch in it, from 1.
  std::int64_t epochs = 0;  // In it; 0: there is none.
};

// Times are of the work that the state holds: what a killed process did after its last checkpoint is done again and
// counted once, and no time passes between two processes. No wall clock.
struct TrainHistory {
  std::vector<EpochResult> epochs;    // The finished ones.
  double seconds = 0;                 // Since the run began.
  double epoch_seconds = 0;           // Training in the epoch that is not finished.
  bool evaluation_due = false;        // Its last step is done, its evaluation is not.
  std::optional<TrainResult> result;  // Of a run that has ended.
  SwaHistory swa;
};

// Whether the last `patience` epochs that have a val accuracy brought none better than all before. With patience 0:
// false.
bool is_out_of_patience(const std::vector<EpochResult>& epochs, std::int64_t patience);

// Of result.json. Counts by class stand in the result alone.
nlohmann::ordered_json to_json(const EpochResult& epoch);
nlohmann::ordered_json to_json(const TrainResult& result);
// {"samples": [...], "right": [...], "predicted": [...]}, each with one number a class.
nlohmann::ordered_json to_json(const std::vector<ClassCounts>& classes);

// The history as a checkpoint carries it; numbers come back bit for bit. Of the epochs the last alone has its counts by
// class: the best checkpoint is of that. evaluation_due is the checkpoint's own.
std::string history_text(const TrainHistory& history);
// `tests_were_val`: what earlier versions called test was the data's val, as they read it where there was no test.
// Error{corrupt_data} names `path`, the checkpoint.
TrainHistory parse_history(const std::string& text, bool evaluation_due, bool tests_were_val,
                           const std::filesystem::path& path);

}  // namespace headrace
