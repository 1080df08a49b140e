#include "core/base/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/base/fail.h"

namespace headrace {
namespace {

using Words = std::vector<std::string>;

TEST(RunProgram, GivesTheWordsAfterTheProgramsName) {
  std::array<std::string, 3> line{"bench", "photos", ""};
  std::array<char*, 4> argv{line[0].data(), line[1].data(), line[2].data(), nullptr};
  Words found;
  EXPECT_EQ(run_program(3, argv.data(), [&found](const Words& words) { found = words; }), 0);
  EXPECT_THAT(found, testing::ElementsAre("photos", ""));
}

TEST(RunProgram, AnExceptionIsOneLineOnStderrAndStatusOne) {
  std::string name = "bench";
  std::array<char*, 2> argv{name.data(), nullptr};
  const auto refuse = [](const Words& words) { fail(ErrorCode::invalid_argument, "{} words", words.size()); };
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program(1, argv.data(), refuse), 1);
  EXPECT_EQ(run_program(1, argv.data(), refuse, "photo_loader"), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "0 words\nphoto_loader: 0 words\n");
}

}  // namespace
}  // namespace headrace
