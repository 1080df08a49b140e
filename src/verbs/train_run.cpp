#include "verbs/train_run.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "exec/stop.h"
#include "train/checkpoint.h"
#include "train/loop.h"

namespace headrace {
namespace {

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
}

// "Training  epoch 2/4   61 %  Loss: 0.3121  Avg Loss: 0.3310  3412 samples/s  11.2 s left"
class EpochProgress {
 public:
  EpochProgress(Console& console, Trainer& trainer, std::int64_t epochs, std::int64_t batches)
      : console_(console), trainer_(trainer), epochs_(epochs), batches_(batches), first_(trainer.progress().batch) {}

  void step(const StepDone& done) {
    samples_ += done.samples;
    ++steps_;
    const std::int64_t now = monotonic_ns();
    if (now - shown_ns_ < 200'000'000) return;  // A few times a second; losses are read only then.
    shown_ns_ = now;
    const double left = seconds() / static_cast<double>(steps_) * static_cast<double>(batches_ - first_ - steps_);
    console_.progress(fmt::format(
        "Training  epoch {}/{}  {:3.0f} %  Loss: {:.4f}  Avg Loss: {:.4f}  {:.0f} samples/s  {} left",
        trainer_.progress().epoch + 1, epochs_,
        100.0 * static_cast<double>(first_ + steps_) / static_cast<double>(batches_), done.loss.item<double>(),
        trainer_.mean_loss().value_or(0), static_cast<double>(samples_) / seconds(), duration_text(left)));
  }
  double seconds() const { return seconds_since(begin_ns_); }
  std::int64_t samples() const { return samples_; }

 private:
  Console& console_;
  Trainer& trainer_;
  const std::int64_t epochs_, batches_, first_;
  const std::int64_t begin_ns_ = monotonic_ns();
  std::int64_t shown_ns_ = 0, samples_ = 0, steps_ = 0;
};

}  // namespace

void refuse_earlier_checkpoints(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-") && name.ends_with(".safetensors")) {
      fail(ErrorCode::invalid_argument,
           "train: {} holds {} of an earlier run: go on with train --resume, or choose another --out", folder.string(),
           name);
    }
  }
}

TrainRun train_to_end(Training& training, const std::filesystem::path& folder, Console& console) {
  const std::int64_t begin_ns = monotonic_ns();
  const Recipe& recipe = training.recipe();
  Trainer& trainer = training.trainer();
  const auto save = [&] {
    const auto path = save_checkpoint(folder, trainer, recipe.model.name, static_cast<std::uint64_t>(recipe.seed),
                                      recipe.train.keep_checkpoints);
    console.debug("checkpoint " + path.string());
  };
  TrainRun run;
  while (trainer.progress().epoch < recipe.train.epochs && run.stopped_by == 0) {
    EpochResult result;
    result.epoch = trainer.progress().epoch + 1;
    Epoch epoch = training.loader().epoch(trainer.progress().epoch, trainer.progress().batch);
    EpochProgress progress{console, trainer, recipe.train.epochs, epoch.batches()};
    const LoopEnd end = run_steps(trainer, epoch, epoch.batches(), [&](const StepDone& done) { progress.step(done); });
    result.seconds = progress.seconds();
    result.samples_per_second = static_cast<double>(progress.samples()) / result.seconds;
    result.loss = trainer.take_mean_loss().value_or(std::numeric_limits<double>::quiet_NaN());
    console.clear_progress();
    save();
    if (end == LoopEnd::stopped) {
      run.stopped_by = stop_signal();
      console.warning(fmt::format("stopped in epoch {}; a checkpoint was written, go on with --resume", result.epoch));
      break;
    }
    const std::int64_t test_begin_ns = monotonic_ns();
    const Evaluation evaluation = evaluate(trainer, training.test_loader());
    result.test_seconds = seconds_since(test_begin_ns);
    result.test_loss = evaluation.loss;
    result.test_accuracy = evaluation.accuracy;
    result.finished_s = seconds_since(begin_ns);
    console.info(fmt::format("epoch {}/{}  loss {:.4f}  test accuracy {:.4f}  {:.0f} samples/s  {}", result.epoch,
                             recipe.train.epochs, result.loss, result.test_accuracy, result.samples_per_second,
                             duration_text(result.seconds)));
    run.epochs.push_back(result);
  }
  run.seconds = seconds_since(begin_ns);
  return run;
}

nlohmann::ordered_json to_json(const TrainRun& run) {
  nlohmann::ordered_json document{{"seconds", run.seconds}, {"stopped_by", run.stopped_by}};
  document["epochs"] = nlohmann::ordered_json::array();
  for (const EpochResult& epoch : run.epochs) {
    document["epochs"].push_back({{"epoch", epoch.epoch},
                                  {"loss", epoch.loss},
                                  {"test_loss", epoch.test_loss},
                                  {"test_accuracy", epoch.test_accuracy},
                                  {"seconds", epoch.seconds},
                                  {"test_seconds", epoch.test_seconds},
                                  {"samples_per_second", epoch.samples_per_second},
                                  {"finished_s", epoch.finished_s}});
  }
  return document;
}

}  // namespace headrace
