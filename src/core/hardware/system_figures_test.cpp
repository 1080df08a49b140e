#include "core/hardware/system_figures.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "core/base/clock.h"
#include "core/base/descriptor.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using testing::Not;

constexpr const char* kNoNvml = "libheadrace-no-such.so.1";

std::map<std::string, double> by_name(const std::vector<SystemFigure>& figures) {
  std::map<std::string, double> result;
  for (const SystemFigure& figure : figures) result[figure.name] = figure.value;
  return result;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(SystemFigures, ABusyThreadTakesItsCoreAndTheKernelCountsAsMuch) {
  SystemReader reader("", kNoNvml);
  const double before_s = static_cast<double>(monotonic_ns()) * 1e-9;
  const std::int64_t cpu_before = process_cpu_ns();
  reader.read();
  const std::int64_t busy_until = thread_cpu_ns() + 200'000'000;
  while (thread_cpu_ns() < busy_until) {
  }
  const auto figures = by_name(reader.read());
  const double most_s = static_cast<double>(process_cpu_ns() - cpu_before) * 1e-9;
  const double elapsed_s = static_cast<double>(monotonic_ns()) * 1e-9 - before_s;
  ASSERT_THAT(figures, testing::Contains(testing::Key("process.cpu_cores")));
  EXPECT_GE(figures.at("process.cpu_cores") * elapsed_s, 0.2);
  EXPECT_LE(figures.at("process.cpu_cores") * 0.2, most_s + 0.001);  // It ran for 0.2 s at least.
}

TEST(SystemFigures, WrittenBytesAreThoseOfTheWriteCalls) {
  if (!std::filesystem::exists("/proc/self/io")) {  // A kernel without it: then there is no such figure.
    SystemReader reader("", kNoNvml);
    reader.read();
    EXPECT_THAT(by_name(reader.read()), Not(testing::Contains(testing::Key("process.written_bytes_per_s"))));
    return;
  }
  constexpr std::size_t kBytes = 100'000'000;
  const std::string block(1'000'000, 'x');
  const Descriptor null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  ASSERT_GE(null.number(), 0);
  SystemReader reader("", kNoNvml);
  const std::int64_t before = monotonic_ns();
  reader.read();
  for (std::size_t i = 0; i < kBytes / block.size(); ++i) {
    ASSERT_EQ(::write(null.number(), block.data(), block.size()), std::ssize(block));
  }
  const auto figures = by_name(reader.read());
  const double elapsed_s = static_cast<double>(monotonic_ns() - before) * 1e-9;
  EXPECT_GE(figures.at("process.written_bytes_per_s") * elapsed_s, 100e6);
}

TEST(SystemFigures, RatesAndSharesAreDifferencesOfTheKernelsCounts) {
  const TemporaryFolder folder;
  const std::filesystem::path& root = folder.path();
  const auto write_counts = [&](int read) {
    write_text(root / "proc/stat", read == 0 ? "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 100 0 100 300 0 0 0 0 0 0\n"
                                               "cpu1 0 0 0 500 0 0 0 0 0 0\nctxt 1000\n"
                                             : "cpu  250 0 150 900 0 0 0 100 0 0\ncpu0 250 0 150 300 0 0 0 0 0 0\n"
                                               "cpu1 0 0 0 600 0 0 0 100 0 0\nctxt 1000\n");
    write_text(root / "proc/meminfo", "MemTotal:       2000 kB\nMemFree:  1 kB\nMemAvailable:   1500 kB\n");
    write_text(root / "proc/diskstats",
               read == 0 ? "8 0 sda 1 0 100 0 1 0 100 0 0 0 0\n8 1 sda1 1 0 100 0 1 0 100 0 0 0 0\n"
                           "253 0 dm-0 1 0 100 0 1 0 100 0 0 0 0\n"
                         : "8 0 sda 1 0 100 0 1 0 300 0 0 0 0\n8 1 sda1 1 0 100 0 1 0 300 0 0 0 0\n"
                           "253 0 dm-0 1 0 900 0 1 0 300 0 0 0 0\n");  // A volume of sda's, which counts for it.
    write_text(root / "proc/net/dev", read == 0 ? "head\n lo: 5 0 0 0 0 0 0 0 5 0\neth0: 10 0 0 0 0 0 0 0 20 0\n"
                                                : "head\n lo: 9 0 0 0 0 0 0 0 9 0\neth0: 10 0 0 0 0 0 0 0 20 0\n");
  };
  std::filesystem::create_directories(root / "sys/block/sda/slaves");
  std::filesystem::create_directories(root / "sys/block/dm-0/slaves/sda");
  SystemReader reader(root.native(), kNoNvml);
  write_counts(0);
  auto figures = by_name(reader.read());
  EXPECT_EQ(figures.at("machine.memory_total_bytes"), 2000 * 1024);
  EXPECT_EQ(figures.at("machine.memory_available_bytes"), 1500 * 1024);
  EXPECT_THAT(figures, Not(testing::Contains(testing::Key("machine.cpu_share"))));
  write_counts(1);
  figures = by_name(reader.read());
  EXPECT_DOUBLE_EQ(figures.at("machine.cpu_share"), 0.5);  // 200 of 400 ticks; 100 went to the host's others.
  EXPECT_DOUBLE_EQ(figures.at("machine.core.0.share"), 1);
  EXPECT_DOUBLE_EQ(figures.at("machine.core.1.share"), 0);
  EXPECT_EQ(figures.at("machine.context_switches_per_s"), 0);
  EXPECT_EQ(figures.at("machine.network_received_bytes_per_s"), 0);  // The loopback's do not count.
  EXPECT_EQ(figures.at("machine.disk_read_bytes_per_s"), 0);
  EXPECT_GT(figures.at("machine.disk_written_bytes_per_s"), 0);
}

TEST(SystemFigures, WhatTheSystemDoesNotTellIsLeftOut) {
  const TemporaryFolder empty;
  SystemReader reader(empty.path().native(), kNoNvml);
  reader.read();
  for (const auto& [name, value] : by_name(reader.read())) {
    EXPECT_FALSE(name.starts_with("machine.") || name.starts_with("gpu.")) << name;
  }
  EXPECT_EQ(reader.gpu(), "unavailable: no NVML (libheadrace-no-such.so.1)");
}

}  // namespace
}  // namespace headrace
