// What a TrainLoop ends with: the best epoch's weights, the last one's, or the mean of the last ones.
#include <fmt/format.h>
#include <headrace/weights.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "core/exec/stop.h"
#include "engine/verbs/train_loop.h"
#include "torch/tensor/allocator.h"
#include "torch/tensor/kept_values.h"

namespace headrace {

void TrainLoop::resume_mean(const NamedTensors& kept) {
  const std::int64_t start = recipe().train.swa_start;
  const bool goes_on = start > 0 && history_.swa.epochs > 0 && history_.swa.first >= start;
  if (goes_on) {
    NamedTensors mean;
    for (const auto& [name, tensor] : kept) {
      if (name.starts_with(kSwaTensors)) mean.emplace_back(name.substr(std::string_view(kSwaTensors).size()), tensor);
    }
    mean_.emplace(trainer().model(), history_.swa.epochs, mean);
    return;
  }
  if (history_.swa.epochs > 0) {
    console_.warning(
        fmt::format("the checkpoint has the mean of the weights since epoch {}, which is given up: "
                    "train.swa_start is {}",
                    history_.swa.first, start));
  }
  history_.swa = {};
  if (history_.result && history_.result->swa_epochs > 0) history_.result.reset();
  if (start > 0) mean_.emplace(trainer().model());
}

void TrainLoop::as_written(const std::function<void()>& work) {
  online_ != nullptr ? online_->as_written(work) : work();
}

void TrainLoop::with(Weights weights, const std::function<void()>& work) {
  weights == Weights::averages ? trainer().with_averages(work) : work();
}

Score TrainLoop::score(Loader& loader, Weights weights) {
  give_freed_memory_back();  // Or what the steps have used stays beside what the evaluation uses.
  const std::int64_t begin_ns = monotonic_ns();
  Evaluation evaluation;
  as_written([&] { with(weights, [&] { evaluation = evaluate(trainer(), loader); }); });
  const double took_s = seconds_since(begin_ns);
  give_freed_memory_back();  // Or each later epoch would peak higher than the first.
  return {evaluation.loss, evaluation.accuracy, evaluation.top5_accuracy, took_s, std::move(evaluation.classes)};
}

bool TrainLoop::finish_run() {
  finish_writes();
  const bool recorded = history_.result.has_value();
  if (mean_ && mean_->epochs() > 0) {
    if (!finish_with_mean()) {
      console_.warning("stopped before the mean of the weights was the result; go on with --resume");
      return false;
    }
  } else {
    finish_with_chosen();
  }
  console_.info(choice_text(*history_.result));
  if (!recorded) save();
  return true;
}

void TrainLoop::finish_with_chosen() {
  const bool chosen = std::any_of(history_.epochs.begin(), history_.epochs.end(),
                                  [](const EpochResult& epoch) { return epoch.val.has_value(); });
  const auto kept = chosen ? std::make_unique<KeptValues>(weights_of(trainer().model())) : nullptr;
  TrainResult result = chosen ? load_best() : TrainResult{.epoch = trainer().progress().epoch};
  // The best checkpoint's averages are in the model then; the trainer's own are the last epoch's.
  const Weights weights = chosen ? Weights::of_model : Weights::averages;
  if (!history_.result) {
    read_test(result, weights);
    history_.result = result;
  }
  with(weights, [this] { write_weights(); });
}

bool TrainLoop::finish_with_mean() {
  const KeptValues kept(weights_of(trainer().model()));
  mean_->show();
  if (!mean_->has_buffers()) {
    bool is_whole = false;
    as_written([&] { is_whole = training_.renew_statistics([] { return stop_signal() != 0; }); });
    if (!is_whole) return false;
    mean_->keep_buffers();
  }
  if (!history_.result) {
    TrainResult result{.epoch = trainer().progress().epoch, .swa_epochs = mean_->epochs()};
    if (training_.val_loader() != nullptr) result.val = score(*training_.val_loader(), Weights::of_model);
    read_test(result, Weights::of_model);
    history_.result = result;
  }
  write_weights();
  return true;
}

void TrainLoop::read_test(TrainResult& result, Weights weights) {
  if (training_.test_loader() == nullptr) return;
  result.test = score(*training_.test_loader(), weights);
  const std::string whose =
      result.swa_epochs > 0 ? "the mean of the weights" : fmt::format("the weights of epoch {}", result.epoch);
  console_.info(fmt::format("test, read once: accuracy {} with {}", accuracy_of(*result.test), whose));
}

TrainResult TrainLoop::load_best() {
  const std::filesystem::path path = folder_ / kBestCheckpoint;
  const CheckpointInfo info = load_checkpoint(path, trainer(), recipe().model.name, /*weights_only=*/true);
  const TrainHistory then = parse_history(info.run.history, false, tests_were_val(training_), path);
  if (then.epochs.empty() || !then.epochs.back().val) {
    fail(ErrorCode::corrupt_data, "train: {}: it says no val accuracy, by which the best was chosen", path.string());
  }
  return {.epoch = then.epochs.back().epoch, .val = then.epochs.back().val};
}

void TrainLoop::write_weights() {
  save_weights(folder_ / "model.safetensors", trainer().model(),
               {{"headrace", "weights"}, {"version", "1"}, {"model", recipe().model.name}});
}

}  // namespace headrace
