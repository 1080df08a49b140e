#include "engine/assembly/trial_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/exec/shared_memory.h"
#include "engine/assembly/trial_protocol.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

// Step number n takes n seconds; its state is the number of steps that it has made.
class CountingJob final : public Job {
 public:
  void snapshot() override { saved_ = done_; }
  void restore() override { done_ = saved_; }
  void configure(const Settings& /*settings*/) override {}
  std::vector<double> run(std::int64_t steps) override {
    if (steps == 13) throw std::runtime_error("thirteen\nat line 1");
    std::vector<double> seconds;
    while (std::ssize(seconds) < steps) seconds.push_back(static_cast<double>(++done_));
    return seconds;
  }
  Fingerprint fingerprint(std::int64_t /*batch*/) override { return {}; }
  std::uint64_t state_hash() override { return ~static_cast<std::uint64_t>(done_); }
  double update_difference(const Settings& /*a*/, const Settings& /*b*/) override { return 0; }
  std::int64_t samples_per_step() const override { return 1; }

 private:
  std::int64_t done_ = 3, saved_ = 0;
};

class TrialAnswers : public testing::Test {
 protected:
  TrialAnswers() : TrialAnswers(ControlChannel::pair()) {}

  void start(std::function<std::unique_ptr<Job>()> make_job = [] { return std::make_unique<CountingJob>(); }) {
    child_ = std::jthread([this, make = std::move(make_job)] {
      answer_trial(theirs_, slot_.descriptor(), make);
      theirs_.shut_down();
    });
  }
  ~TrialAnswers() override { ours_.shut_down(); }

  ControlMessage hear() {
    ControlMessage message;
    EXPECT_EQ(ours_.receive(message, 60s), ControlChannel::Arrival::message);
    return message;
  }
  ControlMessage ask(const ControlMessage& question) {
    EXPECT_TRUE(ours_.send(question));
    return hear();
  }
  std::vector<double> seconds(const ControlMessage& answer) {
    EXPECT_EQ(answer.kind, trial::ran);
    std::vector<double> found(static_cast<std::size_t>(answer.numbers[0]));
    std::memcpy(found.data(), slot_.bytes().data(), found.size() * sizeof(double));
    return found;
  }
  std::string text(const ControlMessage& answer) {
    EXPECT_EQ(answer.kind, trial::failed);
    const auto bytes = slot_.front(answer.numbers[1]);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool is_over() {
    ControlMessage message;
    return ours_.receive(message, 60s) == ControlChannel::Arrival::closed;
  }

 private:
  explicit TrialAnswers(std::pair<ControlChannel, ControlChannel> ends)
      : ours_(std::move(ends.first)), theirs_(std::move(ends.second)) {}

  ControlChannel ours_, theirs_;
  SharedMemory slot_{"headrace-test", trial::kSlotBytes};
  std::jthread child_;  // Last, so that it ends first.
};

TEST_F(TrialAnswers, StepsBeginInTheSnapshotOrGoOnAndTheHashIsOfTheStateThen) {
  start();
  EXPECT_EQ(hear(), (ControlMessage{trial::ready, {trial::kFormat}}));
  EXPECT_EQ(seconds(ask({trial::run, {2, 0}})), (std::vector<double>{4, 5}));
  EXPECT_EQ(seconds(ask({trial::run, {1, 0}})), std::vector<double>{6});
  EXPECT_EQ(seconds(ask({trial::run, {2, 1}})), (std::vector<double>{4, 5}));
  EXPECT_EQ(ask({trial::hash, {}}), (ControlMessage{trial::hashed, {~std::int64_t{5}}}));
}

TEST_F(TrialAnswers, WhatTheJobThrowsIsToldInALineAndEndsIt) {
  start();
  hear();
  const ControlMessage answer = ask({trial::run, {13, 1}});
  EXPECT_THAT(text(answer), testing::AllOf(testing::HasSubstr("thirteen"), testing::Not(testing::HasSubstr("\n"))));
  EXPECT_TRUE(is_over());
}

TEST_F(TrialAnswers, AJobThatCannotBeMadeIsToldInPlaceOfReady) {
  start([]() -> std::unique_ptr<Job> { fail(ErrorCode::out_of_memory, "data: {}", std::string(10'000, 'x')); });
  const ControlMessage answer = hear();
  EXPECT_EQ(answer.numbers[0], static_cast<std::int64_t>(ErrorCode::out_of_memory));
  EXPECT_EQ(std::ssize(text(answer)), trial::kTextMax);
  EXPECT_TRUE(is_over());
}

TEST_F(TrialAnswers, QuestionsThatMakeNoSenseEndIt) {
  start();
  hear();
  EXPECT_THAT(text(ask({trial::run, {0, 0}})), testing::HasSubstr("0 steps"));
  EXPECT_TRUE(is_over());
}

}  // namespace
}  // namespace headrace
