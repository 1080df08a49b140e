#include "engine/verbs/train_history.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

// JSON has no number for a loss that is not finite.
double real(const nlohmann::json& number) {
  return number.is_null() ? std::numeric_limits<double>::quiet_NaN() : number.get<double>();
}

std::optional<Score> score_from(const nlohmann::json& document, const std::string& split) {
  if (!document.contains(split + "_accuracy")) return std::nullopt;
  Score score;
  score.loss = real(document.at(split + "_loss"));
  score.accuracy = real(document.at(split + "_accuracy"));
  const std::string top5 = split + "_top5_accuracy";
  if (document.contains(top5)) score.top5_accuracy = real(document.at(top5));
  score.seconds = real(document.at(split + "_seconds"));
  return score;
}

void add_score(nlohmann::ordered_json& document, const std::string& split, const std::optional<Score>& score) {
  if (!score) return;
  document[split + "_loss"] = score->loss;
  document[split + "_accuracy"] = score->accuracy;
  if (score->top5_accuracy) document[split + "_top5_accuracy"] = *score->top5_accuracy;
  document[split + "_seconds"] = score->seconds;
}

EpochResult epoch_from(const nlohmann::json& document, bool tests_were_val) {
  EpochResult epoch;
  epoch.epoch = document.at("epoch").get<std::int64_t>();
  epoch.loss = real(document.at("loss"));
  epoch.val = score_from(document, "val");
  epoch.test = score_from(document, "test");
  if (tests_were_val && epoch.test && !epoch.val) epoch.val = std::exchange(epoch.test, std::nullopt);
  epoch.seconds = real(document.at("seconds"));
  epoch.samples_per_second = real(document.at("samples_per_second"));
  epoch.finished_s = real(document.at("finished_s"));
  return epoch;
}

TrainResult result_from(const nlohmann::json& document) {
  return {document.at("epoch").get<std::int64_t>(), score_from(document, "val"), score_from(document, "test")};
}

}  // namespace

bool is_out_of_patience(const std::vector<EpochResult>& epochs, std::int64_t patience) {
  std::optional<double> best;
  std::int64_t waited = 0;
  for (const EpochResult& epoch : epochs) {
    if (!epoch.val) continue;
    const bool is_better = !best || epoch.val->accuracy > *best;
    if (is_better) best = epoch.val->accuracy;
    waited = is_better ? 0 : waited + 1;
  }
  return patience > 0 && waited >= patience;
}

nlohmann::ordered_json to_json(const EpochResult& epoch) {
  nlohmann::ordered_json document{{"epoch", epoch.epoch}, {"loss", epoch.loss}};
  add_score(document, "val", epoch.val);
  add_score(document, "test", epoch.test);
  document["seconds"] = epoch.seconds;
  document["samples_per_second"] = epoch.samples_per_second;
  document["finished_s"] = epoch.finished_s;
  return document;
}

nlohmann::ordered_json to_json(const TrainResult& result) {
  nlohmann::ordered_json document{{"epoch", result.epoch},
                                  {"chosen_by", result.val ? nlohmann::ordered_json("val_accuracy") : nullptr}};
  add_score(document, "val", result.val);
  add_score(document, "test", result.test);
  return document;
}

std::string history_text(const TrainHistory& history) {
  nlohmann::ordered_json document{{"seconds", history.seconds}, {"epoch_seconds", history.epoch_seconds}};
  document["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : history.epochs) document["epochs"].push_back(to_json(epoch));
  if (history.result) document["result"] = to_json(*history.result);
  return document.dump();
}

TrainHistory parse_history(const std::string& text, bool evaluation_due, bool tests_were_val,
                           const std::filesystem::path& path) {
  try {
    const nlohmann::json document = nlohmann::json::parse(text);
    TrainHistory history;
    history.seconds = document.at("seconds").get<double>();
    history.epoch_seconds = document.at("epoch_seconds").get<double>();
    history.evaluation_due = evaluation_due;
    for (const nlohmann::json& epoch : document.at("epochs")) {
      history.epochs.push_back(epoch_from(epoch, tests_were_val));
    }
    if (document.contains("result")) history.result = result_from(document.at("result"));
    return history;
  } catch (const nlohmann::json::exception& error) {
    const std::string reason = error.what();
    fail(ErrorCode::corrupt_data, "train: {}: the history in the header does not read: {}", path.string(),
         reason.substr(0, reason.find('\n')));
  }
}

}  // namespace headrace
