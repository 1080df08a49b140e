#include "engine/verbs/train_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <nlohmann/json.hpp>

#include "core/base/error_of.h"

namespace headrace {
namespace {

TrainHistory again(const std::string& text) {
  return parse_history(text, /*evaluation_due=*/false, /*tests_were_val=*/false, "run/checkpoint.safetensors");
}

// Epochs of these val accuracies.
std::vector<EpochResult> epochs_of(const std::vector<double>& accuracies) {
  std::vector<EpochResult> epochs;
  for (const double accuracy : accuracies) {
    EpochResult& epoch = epochs.emplace_back();
    epoch.epoch = static_cast<std::int64_t>(epochs.size());
    epoch.val = Score{.accuracy = accuracy};
  }
  return epochs;
}

TEST(TrainHistory, ComesBackFromItsTextWithBothAccuracies) {
  TrainHistory history;
  history.epochs = epochs_of({1.0 / 3, 0.5});
  history.epochs[0].val->top5_accuracy = 2.0 / 3;
  history.result = TrainResult{.epoch = 2, .val = Score{.accuracy = 0.5}, .test = Score{.loss = 0.1}};
  history.result->test->top5_accuracy = 0.1 + 0.2;
  const TrainHistory read = again(history_text(history));
  ASSERT_EQ(read.epochs.size(), 2U);
  EXPECT_EQ(read.epochs[0].val->accuracy, 1.0 / 3);
  EXPECT_EQ(read.epochs[0].val->top5_accuracy, 2.0 / 3);
  EXPECT_FALSE(read.epochs[1].val->top5_accuracy);
  EXPECT_FALSE(read.result->val->top5_accuracy);
  EXPECT_EQ(read.result->test->loss, 0.1);
  EXPECT_EQ(read.result->test->top5_accuracy, 0.1 + 0.2);
}

TEST(TrainHistory, HasTheCountsByClassOfItsLastEpochAndOfTheResult) {
  TrainHistory history;
  history.epochs = epochs_of({0.5, 0.6});
  for (EpochResult& epoch : history.epochs) epoch.val->classes = {{4, 1, 2}, {3, 3, 5}};
  history.swa = {.first = 3, .epochs = 2};
  history.result = TrainResult{.epoch = 2, .val = Score{.accuracy = 0.6}, .test = Score{}, .swa_epochs = 2};
  history.result->test->classes = {{7, 6, 6}};
  const TrainHistory read = again(history_text(history));
  EXPECT_TRUE(read.epochs[0].val->classes.empty());
  ASSERT_EQ(read.epochs[1].val->classes.size(), 2U);
  EXPECT_EQ(read.epochs[1].val->classes[1].predicted, 5);
  EXPECT_EQ(read.result->test->classes.at(0).right, 6);
  EXPECT_TRUE(read.result->val->classes.empty());
  EXPECT_EQ(read.result->swa_epochs, 2);
  EXPECT_EQ(read.swa.first, 3);
  EXPECT_EQ(read.swa.epochs, 2);
  EXPECT_EQ(to_json(*history.result).dump(),
            R"({"epoch":2,"chosen_by":null,"swa_epochs":2,"val_loss":0.0,"val_accuracy":0.6,"val_seconds":0.0,)"
            R"("test_loss":0.0,"test_accuracy":0.0,"test_seconds":0.0,)"
            R"("test_by_class":{"samples":[7],"right":[6],"predicted":[6]}})");
}

TEST(TrainHistory, OfAnEarlierVersionHasTheAccuracyAlone) {
  const TrainHistory read = again(
      R"({"seconds": 2.5, "epoch_seconds": 0, "epochs": [{"epoch": 1, "loss": 0.5, "val_loss": 0.25,
          "val_accuracy": 0.75, "val_seconds": 0.1, "seconds": 2, "samples_per_second": 10, "finished_s": 2.5}]})");
  ASSERT_EQ(read.epochs.size(), 1U);
  EXPECT_EQ(read.epochs[0].val->accuracy, 0.75);
  EXPECT_EQ(read.epochs[0].val->seconds, 0.1);
  EXPECT_FALSE(read.epochs[0].val->top5_accuracy);
}

TEST(TrainHistory, AnAccuracyThatIsNoNumberIsCorruptAndNamesTheCheckpoint) {
  const std::string message = error_of(ErrorCode::corrupt_data, [] {
    again(R"({"seconds": 1, "epoch_seconds": 0, "epochs": [{"epoch": 1, "loss": 0.5, "val_loss": 0.25,
              "val_accuracy": 0.75, "val_top5_accuracy": "high", "val_seconds": 0.1, "seconds": 2,
              "samples_per_second": 10, "finished_s": 2.5}]})");
  });
  EXPECT_THAT(message, testing::HasSubstr("run/checkpoint.safetensors"));
}

TEST(Patience, EndsWhenSoManyEpochsInARowBroughtNothingBetter) {
  EXPECT_FALSE(is_out_of_patience({}, 1));
  EXPECT_FALSE(is_out_of_patience(epochs_of({0.5, 0.6, 0.7}), 1));
  EXPECT_TRUE(is_out_of_patience(epochs_of({0.5, 0.6, 0.6}), 1));  // As good is not better.
  EXPECT_FALSE(is_out_of_patience(epochs_of({0.5, 0.6, 0.6}), 2));
  EXPECT_TRUE(is_out_of_patience(epochs_of({0.5, 0.6, 0.4, 0.59}), 2));
  EXPECT_FALSE(is_out_of_patience(epochs_of({0.6, 0.5, 0.4, 0.7}), 2));  // What was waited before counts no more.
  EXPECT_FALSE(is_out_of_patience(epochs_of({0.5, 0.4, 0.3, 0.2}), 0));
}

TEST(Patience, EpochsWithoutAValAccuracySayNothing) {
  std::vector<EpochResult> epochs = epochs_of({0.5, 0.4, 0.3});
  epochs[1].val.reset();
  EXPECT_TRUE(is_out_of_patience(epochs, 1));
  EXPECT_FALSE(is_out_of_patience(epochs, 2));
}

}  // namespace
}  // namespace headrace
