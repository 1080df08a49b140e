#include "verbs/train_history.h"

#include <headrace/error.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace headrace {
namespace {

// JSON has no number for a loss that is not finite.
double real(const nlohmann::json& number) {
  return number.is_null() ? std::numeric_limits<double>::quiet_NaN() : number.get<double>();
}

EpochResult epoch_from(const nlohmann::json& document) {
  EpochResult epoch;
  epoch.epoch = document.at("epoch").get<std::int64_t>();
  epoch.loss = real(document.at("loss"));
  epoch.test_loss = real(document.at("test_loss"));
  epoch.test_accuracy = real(document.at("test_accuracy"));
  epoch.seconds = real(document.at("seconds"));
  epoch.test_seconds = real(document.at("test_seconds"));
  epoch.samples_per_second = real(document.at("samples_per_second"));
  epoch.finished_s = real(document.at("finished_s"));
  return epoch;
}

}  // namespace

nlohmann::ordered_json to_json(const EpochResult& epoch) {
  return {{"epoch", epoch.epoch},
          {"loss", epoch.loss},
          {"test_loss", epoch.test_loss},
          {"test_accuracy", epoch.test_accuracy},
          {"seconds", epoch.seconds},
          {"test_seconds", epoch.test_seconds},
          {"samples_per_second", epoch.samples_per_second},
          {"finished_s", epoch.finished_s}};
}

std::string history_text(const TrainHistory& history) {
  nlohmann::ordered_json document{{"seconds", history.seconds}, {"epoch_seconds", history.epoch_seconds}};
  document["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : history.epochs) document["epochs"].push_back(to_json(epoch));
  return document.dump();
}

TrainHistory parse_history(const std::string& text, bool evaluation_due, const std::filesystem::path& path) {
  try {
    const nlohmann::json document = nlohmann::json::parse(text);
    TrainHistory history;
    history.seconds = document.at("seconds").get<double>();
    history.epoch_seconds = document.at("epoch_seconds").get<double>();
    history.evaluation_due = evaluation_due;
    for (const nlohmann::json& epoch : document.at("epochs")) history.epochs.push_back(epoch_from(epoch));
    return history;
  } catch (const nlohmann::json::exception& error) {
    const std::string reason = error.what();
    fail(ErrorCode::corrupt_data, "train: {}: the history in the header does not read: {}", path.string(),
         reason.substr(0, reason.find('\n')));
  }
}

}  // namespace headrace
