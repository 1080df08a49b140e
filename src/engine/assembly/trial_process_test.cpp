// Children are shell scripts that do one thing wrong; a conversation that goes well is tests/process_trials_test.py's.
#include "engine/assembly/trial_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "core/exec/stop.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

// One message, of 64 bytes: kind, first and second number, each below 256, as octal escapes.
std::string say(const std::string& kind, const std::string& first = "\\000", const std::string& second = "\\000") {
  const std::string zeros = "head -c 7 /dev/zero; ";
  return "( printf '" + kind + "'; " + zeros + "printf '" + first + "'; " + zeros + "printf '" + second +
         "'; head -c 47 /dev/zero ) | dd bs=64 count=1 iflag=fullblock status=none >&3; ";
}

const std::string kReady = say("\\001", "\\001");

TrialCommand shell(const std::string& script, std::chrono::milliseconds timeout = 60s) {
  return {.arguments = {"sh", "-c", script}, .recipe = "seed = 3\n", .name = "policy = 1", .timeout = timeout};
}

std::string fault_of(const std::string& script, ErrorCode code = ErrorCode::internal,
                     std::chrono::milliseconds timeout = 60s) {
  return error_of(code, [&] { TrialProcess{shell(script, timeout)}.run(2, true); });
}

TEST(TrialProcess, FindsTheRecipeAndTellsHowItEnded) {
  EXPECT_EQ(fault_of("test \"$(cat /proc/self/fd/4)\" = 'seed = 3' && exit 7"),
            "tune: the process with policy = 1 ended with exit status 7");
  EXPECT_EQ(fault_of(kReady + "kill -SEGV $$"), "tune: the process with policy = 1 was killed by SIGSEGV");
}

TEST(TrialProcess, ThatCannotBeStartedIsNamed) {
  EXPECT_THAT(
      error_of(ErrorCode::not_found,
               [] { TrialProcess{{.arguments = {"/nowhere/headrace"}, .recipe = "", .name = "", .timeout = 60s}}; }),
      testing::HasSubstr("/nowhere/headrace"));
}

TEST(TrialProcess, ThatHangsIsKilledWhenTheTimeIsOver) {
  EXPECT_EQ(fault_of("sleep 1000", ErrorCode::internal, 50ms),
            "tune: the process with policy = 1 gave no answer within 0.05 s and was killed");
}

TEST(TrialProcess, ThatTalksNonsenseIsKilled) {
  EXPECT_EQ(fault_of("printf nonsense >&3; sleep 1000"),
            "tune: the process with policy = 1 sent what is no message and was killed");
  EXPECT_EQ(fault_of(say("\\007") + "sleep 1000"),
            "tune: the process with policy = 1 sent a message of kind 7 where 1 was wanted");
  EXPECT_EQ(fault_of(say("\\001", "\\011") + "sleep 1000"),
            "tune: the process with policy = 1 speaks format 9, wanted 1");
  EXPECT_EQ(fault_of(kReady + say("\\003", "\\005") + "sleep 1000"),
            "tune: the process with policy = 1 was asked for 2 steps and made 5");
}

TEST(TrialProcess, TellsWhatItsJobThrewWithTheJobsCode) {
  const std::string tell = "printf 'no room\\nat line 1' >&5; ";
  EXPECT_EQ(fault_of(tell + say("\\006", "\\005", "\\007"), ErrorCode::out_of_memory),
            "tune: the process with policy = 1: no room");
  EXPECT_EQ(fault_of(tell + say("\\006", "\\007", "\\007")), "tune: the process with policy = 1: no room")
      << "that it was stopped is no stop of the tuning";
  EXPECT_EQ(fault_of(tell + say("\\006", "\\144", "\\007")), "tune: the process with policy = 1: no room");
}

TEST(TrialProcess, AStopIsNotWaitedOut) {
  request_stop(15);
  EXPECT_EQ(fault_of("sleep 1000", ErrorCode::cancelled), "tune: stopped");
  request_stop(0);
}

TEST(TrialProcess, GivesTheSecondsOfItsStepsAndItsHash) {
  // Two doubles of 2.0, whose highest byte is 0x40.
  const std::string two = "( head -c 7 /dev/zero; printf '\\100' )";
  TrialProcess process{shell("{ " + two + "; " + two + "; } >&5; " + kReady + say("\\003", "\\002") +
                             say("\\005", "\\052") + "sleep 1000")};
  EXPECT_EQ(process.run(2, false), (std::vector<double>{2, 2}));
  EXPECT_EQ(process.state_hash(), 42U);
}

}  // namespace
}  // namespace headrace
