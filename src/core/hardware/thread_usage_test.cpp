#include "core/hardware/thread_usage.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/clock.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

TEST(ThreadUsage, PagesThatAreTouchedFirstAreCounted) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::size_t kPages = 64;
  void* const memory = ::mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ::madvise(memory, kPages * page, MADV_NOHUGEPAGE);  // Else one fault may bring them all.
  const ThreadUsageReader reader;
  const ThreadUsage before = reader.read();
  for (std::size_t i = 0; i < kPages; ++i) static_cast<volatile char*>(memory)[i * page] = 1;
  const ThreadUsage used = reader.read() - before;
  ::munmap(memory, kPages * page);
  EXPECT_GE(used.minor_faults, static_cast<std::int64_t>(kPages));
}

TEST(ThreadUsage, WorkIsCpuTimeOfThisThread) {
  const ThreadUsageReader reader;
  const ThreadUsage before = reader.read();
  const std::int64_t begin_ns = thread_cpu_ns();
  while (thread_cpu_ns() - begin_ns < 2'000'000) {
  }
  EXPECT_GE((reader.read() - before).cpu_ns, 2'000'000);
}

void write_thread(const TemporaryFolder& root, const std::string& thread, const std::string& name,
                  const std::string& delay) {
  const std::filesystem::path folder = root.path() / "proc" / "self" / "task" / thread;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "comm") << name << "\n";
  std::ofstream(folder / "schedstat") << delay << "\n";
}

TEST(ThreadUsage, TheLongestDelayIsOfThreadsOfTheSameNameAndOfNewOnesSinceTheyBegan) {
  const TemporaryFolder root;
  write_thread(root, std::to_string(::gettid()), "python3", "1 9000 1");  // The caller's own is no other's.
  write_thread(root, "7", "python3", "1 100 1");
  write_thread(root, "70", "python3", "1 500 1");
  write_thread(root, "71", "loader 0", "1 100 1");
  const auto before = sibling_delays(root.path().string());
  ASSERT_EQ(before.size(), 2U);
  write_thread(root, "7", "python3", "1 350 1");
  write_thread(root, "70", "python3", "1 510 1");
  write_thread(root, "71", "loader 0", "1 99999 1");
  EXPECT_EQ(longest_delay_between(before, sibling_delays(root.path().string())), 250);
  write_thread(root, "8", "python3", "1 260 1");
  EXPECT_EQ(longest_delay_between(before, sibling_delays(root.path().string())), 260);
}

TEST(ThreadUsage, ADelayThatNobodyCountsIsUnavailableAndNotZero) {
  const TemporaryFolder root;
  EXPECT_TRUE(sibling_delays(root.path().string()).empty());
  write_thread(root, std::to_string(::gettid()), "python3", "1 1 1");
  write_thread(root, "7", "python3", "no numbers");
  EXPECT_TRUE(sibling_delays(root.path().string()).empty());
  EXPECT_EQ(longest_delay_between({{7, 100}}, {}), std::nullopt);
}

}  // namespace
}  // namespace headrace
