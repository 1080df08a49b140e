#include <headrace/profile.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/operator_category.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::int64_t kBytes = 1 << 20;

// Category and value of the spans and gauges of a name, in the order in which they began.
std::vector<std::pair<std::string, std::int64_t>> events_of(const TraceRecord& record, std::string_view name) {
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const TraceEvent& event : record.events) {
    const TraceRecord::Name& its_name = record.names[event.name];
    if (its_name.text == name) found.emplace_back(its_name.category, event.value);
  }
  return found;
}

std::vector<std::int64_t> steps_of(const TraceRecord& record) {
  std::vector<std::int64_t> numbers;
  for (const auto& [category, number] : events_of(record, operators::kStep.text)) numbers.push_back(number);
  return numbers;
}

// A step that multiplies once, and keeps memory.
class Loop {
 public:
  void step() {
    at::mm(a_, b_);
    kept_.push_back(at::empty({kBytes}, at::kByte));
  }

 private:
  at::Tensor a_ = at::ones({2, 3}), b_ = at::ones({3, 4});
  std::vector<at::Tensor> kept_;
};

TEST(Profile, FifteenStepsGiveTwoWindowsOfSteps2To4And7To9WithShapesAndMemory) {
  std::vector<ProfileWindow> windows;
  Profile profile({.schedule = ProfileSchedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2},
                   .on_trace_ready = [&](const ProfileWindow& window) { windows.push_back(window); },
                   .record_shapes = true,
                   .profile_memory = true});
  Loop loop;
  for (int step = 0; step < 15; ++step) {
    loop.step();
    profile.step();
  }
  profile.stop();
  ASSERT_THAT(windows, SizeIs(2));
  EXPECT_THAT(steps_of(windows[0].record), ElementsAre(2, 3, 4));
  EXPECT_THAT(steps_of(windows[1].record), ElementsAre(7, 8, 9));
  for (const ProfileWindow& window : windows) {
    EXPECT_EQ(window.first_step, 5 * window.number - 3);
    EXPECT_EQ(window.steps, 3);
    const auto products = events_of(window.record, "aten::mm");
    ASSERT_THAT(products, SizeIs(3));
    EXPECT_EQ(products[0].first, "operator,memory [[2, 3], [3, 4]]");
    std::int64_t kept = 0;
    for (const auto& [category, bytes] : events_of(window.record, "aten::empty")) kept += bytes;
    EXPECT_EQ(kept, 3 * kBytes);
    EXPECT_GE(events_of(window.record, operators::kMemory.text).size(), 3U);
  }
}

TEST(Profile, WithoutAScheduleAllStepsAreOneWindowUntilItStops) {
  int told = 0;
  Profile profile({.on_trace_ready = [&](const ProfileWindow&) { ++told; }});
  Loop loop;
  for (int step = 0; step < 2; ++step) {
    loop.step();
    profile.step();
  }
  loop.step();  // Of a step that is not over.
  EXPECT_EQ(profile.last_window(), nullptr);
  profile.stop();
  profile.stop();
  ASSERT_NE(profile.last_window(), nullptr);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(profile.last_window()->steps, 2);
  EXPECT_THAT(events_of(profile.last_window()->record, "aten::mm"), SizeIs(3));
}

TEST(Profile, AWarmUpThatNothingFollowsIsNoWindow) {
  Profile profile({.schedule = ProfileSchedule{.warmup = 2}});
  EXPECT_TRUE(at::hasThreadLocalCallbacks());
  profile.step();
  profile.stop();
  EXPECT_EQ(profile.last_window(), nullptr);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

TEST(Profile, WhileItWaitsNothingIsObservedAndATraceMayRecord) {
  Profile profile({.schedule = ProfileSchedule{.wait = 2}});
  Trace trace;
  at::ones({2});
  profile.step();
  const TraceRecord record = trace.stop();
  EXPECT_THAT(record.events, IsEmpty());
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

TEST(Profile, AnExceptionInAStepLeavesNoObserverAndAnotherProfileBegins) {
  int told = 0;
  try {
    Profile profile({.on_trace_ready = [&](const ProfileWindow&) { ++told; }});
    at::ones({2});
    throw std::runtime_error("a step that fails");
  } catch (const std::runtime_error&) {
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
  }
  EXPECT_EQ(told, 0);
  Profile second;
  at::ones({2});
  second.stop();
  ASSERT_NE(second.last_window(), nullptr);
  EXPECT_THAT(events_of(second.last_window()->record, "aten::ones"), SizeIs(1));
}

TEST(Profile, AnExceptionOfTheFunctionForWindowsEndsTheProfile) {
  Profile profile({.schedule = ProfileSchedule{.active = 1},
                   .on_trace_ready = [](const ProfileWindow&) { throw std::runtime_error("a full disk"); }});
  EXPECT_THROW(profile.step(), std::runtime_error);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  ASSERT_NE(profile.last_window(), nullptr);
  EXPECT_EQ(profile.last_window()->steps, 1);
  EXPECT_THROW(profile.step(), Error);
  profile.stop();
  EXPECT_EQ(profile.last_window()->number, 1);
  Trace trace;  // Would be refused beside another one.
}

TEST(Profile, BesideATraceThatRecordsAWindowIsRefusedAndNothingObserved) {
  Trace trace;
  EXPECT_THROW(Profile{}, Error);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  Profile profile({.schedule = ProfileSchedule{.wait = 1}});
  EXPECT_THROW(profile.step(), Error);
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
}

TEST(Profile, AScheduleThatCannotBeIsRefused) {
  try {
    const Profile profile({.schedule = ProfileSchedule{.active = 0}});
    FAIL() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("schedule: active: wanted at least 1, found 0"));
  }
}

}  // namespace
}  // namespace headrace
