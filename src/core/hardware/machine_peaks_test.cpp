#include "core/hardware/machine_peaks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

const PeaksKey kKey{.cpu = "a CPU", .cores = 2, .threads = 1, .library = "torch 0"};

class MachinePeaksFile : public testing::Test {
 protected:
  MachinePeaks peaks(const PeaksKey& key = kKey) {
    return machine_peaks(
        key, {.multiply = [this](std::int64_t) { ++multiplied_; }, .read_load = [this] { return load(); }}, file_);
  }
  // Between two readings, 100 ticks of which others took so many.
  CpuLoad load() {
    at_s_ += 1;
    busy_ += 50;
    idle_ += 50;
    own_ += 50 - others_;
    return {.at_s = at_s_, .times = CpuTimes{busy_, idle_, 0}, .own_ticks = own_, .machine = {}, .group = {}};
  }

  TemporaryFolder folder_;
  std::filesystem::path file_ = folder_.path() / "headrace" / "machine_peaks.json";
  int multiplied_ = 0;
  std::int64_t others_ = 0;  // Percent of all cores.

 private:
  double at_s_ = 0;
  std::int64_t busy_ = 0, idle_ = 0, own_ = 0;
};

TEST_F(MachinePeaksFile, IsMeasuredOnceAndThenRead) {
  const MachinePeaks first = peaks();
  EXPECT_GT(first.flops_per_s, 0);
  EXPECT_GT(first.copy_bytes_per_s, 0);
  EXPECT_GT(first.page_fault_s, 0);
  const int measured = multiplied_;
  EXPECT_GT(measured, 1);
  const MachinePeaks again = peaks();
  EXPECT_EQ(multiplied_, measured);
  EXPECT_EQ(again.key, kKey);
  EXPECT_DOUBLE_EQ(again.page_fault_s, first.page_fault_s);
}

TEST_F(MachinePeaksFile, AnotherMachineOrThreadCountIsMeasuredByItself) {
  peaks();
  const int measured = multiplied_;
  PeaksKey other = kKey;
  other.cpu = "another CPU";
  peaks(other);
  EXPECT_GT(multiplied_, measured);
  const int both = multiplied_;
  peaks();
  peaks(other);
  EXPECT_EQ(multiplied_, both);
}

TEST_F(MachinePeaksFile, WhatWasMeasuredBesideOthersIsMeasuredAgainOnceTheMachineIsQuiet) {
  others_ = 40;
  const MachinePeaks disturbed = peaks();
  EXPECT_DOUBLE_EQ(disturbed.others.value(), 0.4);
  const int measured = multiplied_;
  peaks();
  EXPECT_EQ(multiplied_, measured);  // Others are still there.
  others_ = 10;
  const MachinePeaks quiet = peaks();
  EXPECT_GT(multiplied_, measured);
  EXPECT_DOUBLE_EQ(quiet.others.value(), 0.1);
  EXPECT_GE(quiet.flops_per_s, disturbed.flops_per_s);
  EXPECT_LE(quiet.page_fault_s, disturbed.page_fault_s);
  const int twice = multiplied_;
  others_ = 0;
  peaks();
  EXPECT_EQ(multiplied_, twice);
}

TEST_F(MachinePeaksFile, WhereTheKernelTellsNothingOfOthersTheFirstMeasurementHolds) {
  const PeaksMeter meter{.multiply = [this](std::int64_t) { ++multiplied_; }, .read_load = [] { return CpuLoad{}; }};
  EXPECT_FALSE(machine_peaks(kKey, meter, file_).others);
  const int measured = multiplied_;
  EXPECT_FALSE(machine_peaks(kKey, meter, file_).others);
  EXPECT_EQ(multiplied_, measured);
}

TEST_F(MachinePeaksFile, WhatIsNoSuchFileIsMeasuredAgainAndReplaced) {
  std::filesystem::create_directories(file_.parent_path());
  for (
      const std::string text :
      {"", "[", "{}", R"({"format":"headrace-machine-peaks","version":2,"peaks":[]})",
       R"({"format":"headrace-machine-peaks","version":1,"peaks":[{"cpu":"a CPU","cores":2,"threads":1,"library":"torch 0",)"
       R"("flops_per_s":-1,"copy_bytes_per_s":1,"page_fault_s":1,"measured":"","others":null}]})",
       R"({"format":"headrace-machine-peaks","version":1,"peaks":[{"cpu":"a CPU","cores":2,"threads":1,"library":"torch 0",)"
       R"("flops_per_s":1,"copy_bytes_per_s":1,"page_fault_s":1,"measured":""}]})"}) {
    write_file(file_, text);
    multiplied_ = 0;
    peaks();
    EXPECT_GT(multiplied_, 0) << text;
    multiplied_ = 0;
    peaks();
    EXPECT_EQ(multiplied_, 0) << text;
  }
}

TEST_F(MachinePeaksFile, ALinkIsNeitherReadNorReplaced) {
  peaks();
  const std::filesystem::path aside = folder_.path() / "elsewhere.json";
  std::filesystem::rename(file_, aside);
  std::filesystem::create_symlink(aside, file_);
  const int measured = multiplied_;
  peaks();
  EXPECT_GT(multiplied_, measured);
  EXPECT_TRUE(std::filesystem::is_symlink(file_));
}

TEST(MachinePeaks, WithoutAFileIsMeasuredAndWhatMultiplyingThrowsPasses) {
  EXPECT_GT(machine_peaks(kKey, {.multiply = [](std::int64_t) {}}, {}).flops_per_s, 0);
  EXPECT_THROW(machine_peaks(kKey, {.multiply = [](std::int64_t) { throw 1; }}, {}), int);
}

}  // namespace
}  // namespace headrace
