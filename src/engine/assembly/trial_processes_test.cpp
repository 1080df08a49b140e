#include "engine/assembly/trial_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;

const Settings kFirst{}, kSecond{{"policy", "true"}};

class TrialProcessesTest : public testing::Test {
 protected:
  class Arm final : public TrialArm {
   public:
    Arm(std::vector<std::string>& calls, std::string name) : calls_(calls), name_(std::move(name)) {}
    ~Arm() override { calls_.push_back(name_ + " ended"); }
    std::vector<double> run(std::int64_t steps, bool from_snapshot) override {
      calls_.push_back(name_ + (from_snapshot ? " run from snapshot" : " run"));
      return std::vector<double>(static_cast<std::size_t>(steps), 1e-3);
    }
    std::uint64_t state_hash() override { return name_ == "first" ? 1 : 2; }
    void pause() override { calls_.push_back(name_ + " paused"); }
    void resume() override { calls_.push_back(name_ + " resumed"); }

   private:
    std::vector<std::string>& calls_;
    const std::string name_;
  };

  TrialProcesses make() {
    return {kFirst, kSecond, 32, [this](const Settings& settings) -> std::unique_ptr<TrialArm> {
              if (fails) throw Error(ErrorCode::internal, "no process");
              return std::make_unique<Arm>(calls, settings == kFirst ? "first" : "second");
            }};
  }

  std::vector<std::string> calls;
  bool fails = false;
};

TEST_F(TrialProcessesTest, TheOneThatIsConfiguredRunsAndTheOtherIsPaused) {
  {
    TrialProcesses job = make();
    for (int pair = 0; pair < 2; ++pair) {
      for (const Settings& settings : {kFirst, kSecond}) {
        job.configure(settings);
        job.configure(settings);
        EXPECT_EQ(job.run(3).size(), 3U);
        EXPECT_EQ(job.state_hash(), settings == kFirst ? 1U : 2U);
      }
    }
  }
  EXPECT_THAT(calls,
              ElementsAre("first run", "first paused", "second run", "second paused", "first resumed", "first run",
                          "first paused", "second resumed", "second run", "second ended", "first ended"));
}

TEST_F(TrialProcessesTest, TheFirstRunAfterRestoreBeginsInTheSnapshotsState) {
  TrialProcesses job = make();
  job.configure(kSecond);
  job.run(1);
  job.restore();
  job.run(1);
  job.run(1);
  EXPECT_THAT(calls, ElementsAre("second run", "second run from snapshot", "second run"));
  EXPECT_EQ(job.samples_per_step(), 32);
}

TEST_F(TrialProcessesTest, OneThatCannotBeStartedIsTriedAgainAndLeavesNoneRunning) {
  TrialProcesses job = make();
  job.configure(kFirst);
  fails = true;
  EXPECT_THROW(job.configure(kSecond), Error);
  fails = false;
  job.configure(kSecond);
  job.run(1);
  EXPECT_THAT(calls, ElementsAre("first paused", "second run"));
}

TEST_F(TrialProcessesTest, OtherSettingsAndGradientsAreRefused) {
  TrialProcesses job = make();
  EXPECT_THROW(job.configure({{"policy", "false"}}), Error);
  EXPECT_THROW(job.fingerprint(0), Error);
  EXPECT_THROW(job.update_difference(kFirst, kSecond), Error);
  EXPECT_TRUE(calls.empty());
}

}  // namespace
}  // namespace headrace
