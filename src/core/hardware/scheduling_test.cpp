#include "core/hardware/scheduling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <semaphore>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

// "Cpus_allowed_list" of each thread of this process, by the kernel.
std::map<pid_t, std::string> masks() {
  std::map<pid_t, std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/task")) {
    std::ifstream status(entry.path() / "status");
    const std::string key = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(key, 0) == 0) found[std::stoi(entry.path().filename().string())] = line.substr(key.size());
    }
  }
  return found;
}

// Field 19 of each thread's stat, by the kernel.
std::set<int> each_niceness() {
  std::set<int> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    if (!std::getline(file, text)) continue;  // It has ended meanwhile.
    std::istringstream words(text.substr(text.rfind(')') + 1));
    std::string word;
    for (int i = 3; i <= 19; ++i) words >> word;
    found.insert(std::stoi(word));
  }
  return found;
}

// A thread that waits until the end.
class Waiting {
 public:
  Waiting() : thread_([this] { begin(); }) { started_.acquire(); }
  ~Waiting() { end_.release(); }
  pid_t id() const { return id_; }

 private:
  void begin() {
    id_ = ::gettid();
    started_.release();
    end_.acquire();
  }
  pid_t id_ = 0;
  std::binary_semaphore started_{0}, end_{0};
  std::jthread thread_;
};

// A thread that was joined may still be listed for a moment, in `before` as well as now.
void expect_masks_of(const std::map<pid_t, std::string>& before) {
  const auto now = masks();
  EXPECT_EQ(now.count(::getpid()), 1U);
  for (const auto& [thread, mask] : before) {
    const auto found = now.find(thread);
    if (found == now.end()) continue;
    EXPECT_EQ(found->second, mask) << thread;
  }
}

std::string first_core(const std::string& mask) {
  return mask.substr(0, mask.find_first_of(",-"));
}

std::string last_core(const std::string& mask) {
  return mask.substr(mask.find_last_of(",-") + 1);  // npos + 1 is 0.
}

void pin(pid_t thread, const std::string& core) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(std::stoul(core), &mask);
  ASSERT_EQ(::sched_setaffinity(thread, sizeof mask, &mask), 0);
}

TEST(Affinity, OfAllThreadsIsReadBackAndUndoneThreadByThread) {
  const std::string whole = masks().at(::getpid());
  const Waiting early;
  pin(early.id(), last_core(whole));
  const auto before = masks();
  HardwareChange change = set_affinity(first_core(whole));
  EXPECT_EQ(change.setting().name, "affinity");
  EXPECT_EQ(change.setting().how, SettingHow::by_call);
  EXPECT_EQ(change.setting().now, first_core(whole));
  EXPECT_EQ(change.setting().reason, "");
  {
    const Waiting late;
    for (const auto& [thread, mask] : masks()) EXPECT_EQ(mask, first_core(whole)) << thread;
    const HardwareSetting undone = change.undo();
    EXPECT_EQ(undone.how, SettingHow::by_call);
    EXPECT_EQ(undone.now, change.setting().before);
    EXPECT_EQ(masks().at(late.id()), whole);
  }
  expect_masks_of(before);
  EXPECT_EQ(change.undo().before, first_core(whole));  // Of the first undo: a second one does nothing.
  expect_masks_of(before);
}

TEST(Affinity, OfTheWholeListChangesNothing) {
  const auto before = masks();
  HardwareChange change = set_affinity(" " + before.at(::getpid()) + "\n");
  EXPECT_EQ(change.setting().how, SettingHow::by_call);
  EXPECT_EQ(change.setting().now, change.setting().before);
  change.undo();
  expect_masks_of(before);
}

TEST(Affinity, OfCoresThatAreNotThereNamesThem) {
  const auto before = masks();
  const std::string first = first_core(before.at(::getpid()));
  const std::string said = error_of(ErrorCode::invalid_argument, [&] { set_affinity(first + ",8190-8191"); });
  EXPECT_THAT(said, StartsWith("hardware: affinity: "));
  EXPECT_THAT(said, HasSubstr("found 8190-8191 in"));
  for (const std::string text :
       {"", ",", "0-", "-1", "3-1", "0, 1", "x", "node", "node-1", "0-99999999999999999999", "8192", "0\n1", "nodes"}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { set_affinity(text); }), HasSubstr("wanted a list of cores"))
        << text;
  }
  const std::string long_text = error_of(ErrorCode::invalid_argument, [] { set_affinity(std::string(1 << 20, '0')); });
  EXPECT_LT(long_text.size(), 250U);
  expect_masks_of(before);
}

TEST(Affinity, OfANodeIsItsCoresThatTheProcessHas) {
  const TemporaryFolder temporary;
  const fs::path nodes = temporary.path() / "sys/devices/system/node";
  const auto before = masks();
  const std::string first = first_core(before.at(::getpid()));
  const auto put = [&](const std::string& file, const std::string& text) {
    fs::create_directories((nodes / file).parent_path());
    std::ofstream(nodes / file) << text;
  };
  put("online", "0-2\n");
  put("node0/cpulist", first + ",8190\n");
  put("node1/cpulist", "8191\n");
  put("node2/cpulist", "\n");
  HardwareChange change = set_affinity("node0", temporary.path());
  EXPECT_EQ(change.setting().requested, "node0");
  EXPECT_EQ(change.setting().now, first);
  change.undo();
  expect_masks_of(before);
  const auto said = [&](const std::string& node) {
    return error_of(ErrorCode::invalid_argument, [&] { set_affinity(node, temporary.path()); });
  };
  EXPECT_THAT(said("node1"), HasSubstr("found node1 with 8191"));
  EXPECT_THAT(said("node2"), HasSubstr("found node2 with none"));
  EXPECT_THAT(said("node3"), HasSubstr("which has 0-2, found node3"));
}

TEST(Niceness, BeyondItsRangeIsAnError) {
  for (const std::int64_t niceness : {std::int64_t{-21}, std::int64_t{20}, std::int64_t{1} << 40}) {
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { set_niceness(niceness); }),
                HasSubstr("niceness: wanted -20 to 19, found"));
  }
}

// For a process of its own, which ends with status 0 and no word where all is as it should be.
class Findings {
 public:
  void want(bool holds, const std::string& what) {
    if (!holds) text_ += what + "\n";
  }
  [[noreturn]] void end() const {
    std::fputs(text_.c_str(), stderr);
    std::_Exit(text_.empty() ? 0 : 1);
  }

 private:
  std::string text_;
};

// Of the calling thread and those that it starts.
bool give_up_right_to_lower() {
  const rlimit none{0, 0};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::setrlimit(RLIMIT_NICE, &none) != 0 || ::syscall(SYS_capget, &header, sets) != 0) return false;
  const auto others = ~(1U << CAP_SYS_NICE);
  sets[0].effective &= others;
  sets[0].permitted &= others;
  sets[0].inheritable &= others;
  return ::syscall(SYS_capset, &header, sets) == 0;
}

[[noreturn]] void raise_without_the_right_to_lower() {
  Findings findings;
  findings.want(give_up_right_to_lower(), "the right to lower niceness cannot be given up");
  const int own = *each_niceness().begin(), raised = std::min(own + 2, 19);
  const Waiting other;
  HardwareChange change = set_niceness(raised);
  const HardwareSetting& made = change.setting();
  findings.want(each_niceness() == std::set<int>{raised}, "not raised for all threads");
  findings.want(made.how == SettingHow::by_call && made.now == std::to_string(raised), "now " + made.now);
  findings.want(made.before == std::to_string(own), "before " + made.before);
  if (raised > own) {
    findings.want(made.reason == "cannot be undone without CAP_SYS_NICE", made.reason);
    const HardwareChange lowered = set_niceness(own);
    findings.want(lowered.setting().how == SettingHow::not_applied, "lowered");
    findings.want(lowered.setting().reason.rfind("not permitted", 0) == 0, lowered.setting().reason);
    findings.want(lowered.setting().now == std::to_string(raised), "now " + lowered.setting().now);
    const HardwareSetting& undone = change.undo();
    findings.want(undone.how == SettingHow::not_applied && undone.reason.rfind("not permitted", 0) == 0, undone.reason);
    findings.want(undone.now == std::to_string(raised), "undone to " + undone.now);
  }
  findings.want(each_niceness() == std::set<int>{raised}, "not as raised in the end");
  findings.end();
}

[[noreturn]] void raise_and_undo() {
  Findings findings;
  const std::set<int> before = each_niceness();
  const int own = *before.begin();
  const Waiting other;
  HardwareChange change = set_niceness(std::min(own + 3, 19));
  const bool can_be_undone = change.setting().reason.empty();
  const HardwareSetting& undone = change.undo();
  findings.want((undone.how == SettingHow::by_call) == can_be_undone, "undo is not what was said: " + undone.reason);
  if (can_be_undone) findings.want(each_niceness() == before, "undone to " + undone.now);
  findings.end();
}

TEST(NicenessDeathTest, IsRaisedForAllThreadsAndWithoutRightsNotLowered) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(raise_without_the_right_to_lower(), testing::ExitedWithCode(0), "");
}

TEST(NicenessDeathTest, IsUndoneWhereTheReportSaidThatItCan) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(raise_and_undo(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace headrace
