#include "engine/verbs/train_history.h"

#include <cstddef>
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

std::vector<ClassCounts> classes_from(const nlohmann::json& document) {
  const auto& samples = document.at("samples");
  std::vector<ClassCounts> classes;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto count = [&](const char* key) { return document.at(key).at(i).get<std::int64_t>(); };
    classes.push_back({count("samples"), count("right"), count("predicted")});
  }
  return classes;
}

std::optional<Score> score_from(const nlohmann::json& document, const std::string& split) {
  if (!document.contains(split + "_accuracy")) return std::nullopt;
  Score score;
  score.loss = real(document.at(split + "_loss"));
  score.accuracy = real(document.at(split + "_accuracy"));
  const std::string top5 = split + "_top5_accuracy";
  if (document.contains(top5)) score.top5_accuracy = real(document.at(top5));
  score.seconds = real(document.at(split + "_seconds"));
  const std::string classes = split + "_by_class";
  if (document.contains(classes)) score.classes = classes_from(document.at(classes));
  return score;
}

void add_score(nlohmann::ordered_json& document, const std::string& split, const std::optional<Score>& score) {
  if (!score) return;
  document[split + "_loss"] = score->loss;
  document[split + "_accuracy"] = score->accuracy;
  if (score->top5_accuracy) document[split + "_top5_accuracy"] = *score->top5_accuracy;
  document[split + "_seconds"] = score->seconds;
}

void add_classes(nlohmann::ordered_json& document, const std::string& split, const std::optional<Score>& score) {
  if (score && !score->classes.empty()) document[split + "_by_class"] = to_json(score->classes);
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
  return {document.at("epoch").get<std::int64_t>(), score_from(document, "val"), score_from(document, "test"),
          document.value("swa_epochs", std::int64_t{0})};
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
  const bool is_chosen = result.val && result.swa_epochs == 0;
  nlohmann::ordered_json document{{"epoch", result.epoch},
                                  {"chosen_by", is_chosen ? nlohmann::ordered_json("val_accuracy") : nullptr}};
  if (result.swa_epochs > 0) document["swa_epochs"] = result.swa_epochs;
  for (const auto& [split, score] : {std::pair{"val", &result.val}, std::pair{"test", &result.test}}) {
    add_score(document, split, *score);
    add_classes(document, split, *score);
  }
  return document;
}

nlohmann::ordered_json to_json(const std::vector<ClassCounts>& classes) {
  nlohmann::ordered_json document;
  for (const auto& [key, count] : {std::pair{"samples", &ClassCounts::samples}, std::pair{"right", &ClassCounts::right},
                                   std::pair{"predicted", &ClassCounts::predicted}}) {
    nlohmann::ordered_json& numbers = document[key] = nlohmann::ordered_json::array();
    for (const ClassCounts& one : classes) numbers.push_back(one.*count);
  }
  return document;
}

std::string history_text(const TrainHistory& history) {
  nlohmann::ordered_json document{{"seconds", history.seconds}, {"epoch_seconds", history.epoch_seconds}};
  document["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : history.epochs) document["epochs"].push_back(to_json(epoch));
  if (!history.epochs.empty()) add_classes(document["epochs"].back(), "val", history.epochs.back().val);
  if (history.swa.epochs > 0) document["swa"] = {{"first", history.swa.first}, {"epochs", history.swa.epochs}};
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
    if (document.contains("swa")) {
      history.swa.first = document.at("swa").at("first").get<std::int64_t>();
      history.swa.epochs = document.at("swa").at("epochs").get<std::int64_t>();
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
