#include "engine/verbs/train_outcome.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/cli/console.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

// "epochs 3 to 5", of a mean.
std::string mean_text(const TrainResult& result) {
  if (result.swa_epochs == 1) return fmt::format("epoch {}", result.epoch);
  return fmt::format("epochs {} to {}", result.epoch - result.swa_epochs + 1, result.epoch);
}

std::vector<Report::ClassFigures> named_classes(const std::vector<ClassCounts>& counts,
                                                const std::vector<std::string>& names) {
  std::vector<Report::ClassFigures> classes;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    classes.push_back(
        {i < names.size() ? names[i] : std::to_string(i), counts[i].samples, counts[i].right, counts[i].predicted});
  }
  return classes;
}

}  // namespace

std::string accuracy_of(const Score& score) {
  return accuracy_text(score.accuracy, score.top5_accuracy);
}

std::string choice_text(const TrainResult& result) {
  if (result.swa_epochs > 0) {
    const std::string val = result.val ? fmt::format(", val accuracy {:.4f}", result.val->accuracy) : "";
    return fmt::format("The mean of the weights after {} is the result, as train.swa_start asks{}.", mean_text(result),
                       val);
  }
  if (!result.val) {
    return "Nothing was chosen: the data has no split val and data.val_fraction is 0; the last checkpoint is the "
           "result.";
  }
  return fmt::format("The checkpoint of epoch {} is the result: the best by val accuracy, {:.4f}.", result.epoch,
                     result.val->accuracy);
}

nlohmann::ordered_json to_json(const TrainRun& run) {
  nlohmann::ordered_json document{{"seconds", run.seconds},
                                  {"stopped_by", run.stopped_by},
                                  {"stopped_early", run.stopped_early},
                                  {"checkpoints", run.checkpoints},
                                  {"checkpoint_seconds", run.checkpoint_seconds},
                                  {"out_of_memory", run.out_of_memory},
                                  {"micro_batch", run.micro_batch}};
  document["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : run.epochs) document["epochs"].push_back(to_json(epoch));
  document["result"] = run.result ? to_json(*run.result) : nullptr;
  document["watched"] = to_json(run.watched);
  return document;
}

void add_outcome(nlohmann::ordered_json& document, const TrainRun& run) {
  const auto accuracy = [&](std::optional<Score> TrainResult::*split) -> nlohmann::ordered_json {
    if (!run.result || !((*run.result).*split)) return nullptr;
    return ((*run.result).*split)->accuracy;
  };
  const auto add_top5 = [&](const char* key, std::optional<Score> TrainResult::*split) {
    if (!run.result || !((*run.result).*split) || !((*run.result).*split)->top5_accuracy) return;
    document[key] = *((*run.result).*split)->top5_accuracy;
  };
  document["val_accuracy"] = accuracy(&TrainResult::val);
  add_top5("val_top5_accuracy", &TrainResult::val);
  document["test_accuracy"] = accuracy(&TrainResult::test);
  add_top5("test_top5_accuracy", &TrainResult::test);
  document["choice"] = run.result ? nlohmann::ordered_json(choice_text(*run.result)) : nullptr;
  if (!run.class_names.empty()) document["class_names"] = run.class_names;
}

std::string outcome_text(const TrainRun& run) {
  if (run.epochs.empty()) return "nothing was trained";
  const EpochResult& last = run.epochs.back();
  const std::optional<Score> test = run.result ? run.result->test : std::nullopt;
  const std::optional<Score> val = run.result ? run.result->val : last.val;
  std::string text;
  if (test) text += "test accuracy " + accuracy_of(*test);
  if (val) text += fmt::format("{}val accuracy {}", text.empty() ? "" : ", ", accuracy_of(*val));
  if (text.empty()) text = "no accuracy";
  if (run.result && run.result->swa_epochs > 0) {
    return text +
           fmt::format(" of the mean after {}{}", mean_text(*run.result), run.stopped_early ? ", stopped early" : "");
  }
  const std::int64_t epoch = run.result ? run.result->epoch : last.epoch;
  if (epoch == last.epoch) return text + fmt::format(" after {} epochs", epoch);
  return text +
         fmt::format(" of epoch {}, the best of {}{}", epoch, last.epoch, run.stopped_early ? ", stopped early" : "");
}

void show_training(Report& report, const TrainRun& run) {
  if (run.epochs.empty()) return;
  Report::Curve accuracy{"Val accuracy", "", {}, {}}, top5{"Val accuracy, top 5", "", {}, {}},
      loss{"Training loss", "", {}, {}};
  for (const EpochResult& epoch : run.epochs) {
    loss.x.push_back(static_cast<double>(epoch.epoch));
    loss.y.push_back(epoch.loss);
    if (!epoch.val) continue;
    accuracy.x.push_back(static_cast<double>(epoch.epoch));
    accuracy.y.push_back(epoch.val->accuracy);
    if (!epoch.val->top5_accuracy) continue;
    top5.x.push_back(static_cast<double>(epoch.epoch));
    top5.y.push_back(*epoch.val->top5_accuracy);
  }
  for (const Report::Curve& curve : {accuracy, top5}) {
    if (!curve.x.empty()) report.curves.push_back(curve);
  }
  report.curves.push_back(loss);
  if (run.steps) show_trace(report, *run.steps, "Now");
  const std::optional<Score> val = run.result ? run.result->val : run.epochs.back().val;
  if (val) report.val_accuracy = val->accuracy, report.val_loss = val->loss;
  if (!run.result) return;
  report.choice = choice_text(*run.result);
  const bool is_test = run.result->test.has_value();
  if (const std::optional<Score>& read = is_test ? run.result->test : val; read) {
    report.classes_of = is_test ? "test" : "val";
    report.classes = named_classes(read->classes, run.class_names);
  }
  if (run.result->test) {
    report.test_accuracy = run.result->test->accuracy;
    report.test_loss = run.result->test->loss;
  }
}

}  // namespace headrace
