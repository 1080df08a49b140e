#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "core/hardware/cgroup.h"
#include "core/hardware/fake_root.h"
#include "core/hardware/instruction_sets.h"
#include "core/hardware/machine.h"
#include "core/hardware/nvml.h"
#include "core/hardware/wait_policy.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A tree with the files of a machine that has 8 cores, 64 GB and no limits.
class FakeMachine : public FakeRoot {
 protected:
  FakeMachine() {
    put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n\nprocessor\t: 1\nmodel name\t: x\n");
    put("/proc/meminfo", "MemTotal:       65536000 kB\nMemFree:        1000 kB\n");
    put("/proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n");
    put("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max address space         unlimited            unlimited            bytes     \n");
    put("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    put("/etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n");
    put("/sys/devices/system/cpu/online", "0-7\n");
    put("/sys/devices/system/node/online", "0-1\n");
  }

  void use_v2(const std::string& group) {
    put("/proc/self/cgroup", "0::" + group + "\n");
    put("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
};

TEST_F(FakeMachine, WithoutLimitsIsTheMachineItself) {
  const Machine machine = detect_machine(root_);
  EXPECT_EQ(machine.cpu, "Fast CPU @ 3 GHz");
  EXPECT_EQ(machine.cores_online, 8);
  EXPECT_EQ(machine.cores_usable, 8);
  EXPECT_EQ(machine.cpu_quota, std::nullopt);
  EXPECT_EQ(machine.memory_total, std::int64_t{65'536'000} * 1024);
  EXPECT_EQ(machine.memory_limit, machine.memory_total);
  EXPECT_EQ(machine.memory_limit_from, "machine");
  EXPECT_EQ(machine.numa_nodes, 2);
  EXPECT_EQ(machine.system, "Debian GNU/Linux 12 (bookworm), Linux 6.1.0-18-amd64");
}

TEST_F(FakeMachine, EmptyTreeIsUnavailableAndNotZero) {
  const Machine machine = detect_machine(root_ + "/nothing");
  EXPECT_EQ(machine.cpu, "unavailable");
  EXPECT_EQ(machine.system, "unavailable");
  EXPECT_EQ(machine.memory_total, std::nullopt);
  EXPECT_EQ(machine.memory_limit, std::nullopt);
  EXPECT_EQ(machine.memory_limit_from, "unavailable");
  EXPECT_EQ(machine.last_level_cache, std::nullopt);
  EXPECT_EQ(machine.cores_usable, 1);
  const auto json = to_json(machine);
  EXPECT_TRUE(json["cores_online"].is_null());
  EXPECT_TRUE(json["memory_limit"].is_null());
}

TEST_F(FakeMachine, AffinityBoundsTheCores) {
  put("/proc/self/status", "Cpus_allowed_list:\t1,4-5\n");
  EXPECT_EQ(detect_machine(root_).cores_usable, 3);
  EXPECT_EQ(detect_machine(root_).cores_online, 8);
}

TEST_F(FakeMachine, GarbageInFilesIsNotKnown) {
  put("/proc/self/status", "Cpus_allowed_list:\t5-1,x\n");
  put("/proc/meminfo", "MemTotal: 99999999999999999999 kB\n");
  put("/sys/devices/system/cpu/online", "-3\n");
  use_v2("/a");
  put("/sys/fs/cgroup/a/memory.max", "-5\n");
  put("/sys/fs/cgroup/a/cpu.max", "100000\n");
  const Machine machine = detect_machine(root_);
  EXPECT_EQ(machine.cores_usable, 1);
  EXPECT_EQ(machine.memory_total, std::nullopt);
  EXPECT_EQ(machine.memory_limit, std::nullopt);
  EXPECT_EQ(machine.cpu_quota, std::nullopt);
}

TEST_F(FakeMachine, CgroupV2LimitsOfTheGroupAndThoseAboveHold) {
  use_v2("/user.slice/job.scope");
  put("/sys/fs/cgroup/user.slice/job.scope/memory.max", "max\n");
  put("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "250000 100000\n");
  put("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n");
  put("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  const Machine machine = detect_machine(root_);
  EXPECT_EQ(machine.memory_limit, 1 << 30);
  EXPECT_EQ(machine.memory_limit_from, "cgroup v2 /sys/fs/cgroup/user.slice");
  EXPECT_EQ(machine.cpu_quota, 2.5);
  EXPECT_EQ(machine.cores_usable, 3);
}

TEST_F(FakeMachine, WhatIsFreeIsTheLeastOfMachineAndControlGroups) {
  const std::string outer = "/sys/fs/cgroup/outer", inner = outer + "/inner";
  put("/proc/meminfo", "MemTotal: 9000 kB\n");
  EXPECT_EQ(free_memory(root_), std::nullopt);
  put("/proc/meminfo", "MemTotal:    9000 kB\nMemAvailable:    2000 kB\n");
  EXPECT_EQ(free_memory(root_), 2'048'000);
  use_v2("/outer/inner");
  put(inner + "/memory.max", "max\n");
  put(inner + "/memory.current", "900000\n");
  EXPECT_EQ(free_memory(root_), 2'048'000);
  put(outer + "/memory.max", "1500000\n");
  put(outer + "/memory.current", "1000000\n");
  EXPECT_EQ(free_memory(root_), 500'000);
  put(outer + "/memory.stat", "anon 5\ninactive_file 200000\n");
  EXPECT_EQ(free_memory(root_), 700'000);
  put(outer + "/memory.current", "2000000\n");
  EXPECT_EQ(free_memory(root_), 0);
}

TEST_F(FakeMachine, OfVersion1TheFilesOfAllGroupsBelowCount) {
  put("/proc/meminfo", "MemAvailable:    2000 kB\n");
  put("/proc/self/cgroup", "4:memory:/job\n");
  put("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000\n");
  put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900000\n");
  put("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 50000\n");
  EXPECT_EQ(free_memory(root_), 150'000);
}

TEST_F(FakeMachine, QuotaBelowOneCoreLeavesOne) {
  use_v2("/");
  put("/sys/fs/cgroup/cpu.max", "5000 100000\n");
  EXPECT_EQ(detect_machine(root_).cores_usable, 1);
  EXPECT_EQ(detect_machine(root_).cpu_quota, 0.05);
}

TEST_F(FakeMachine, CgroupV1LimitsAreReadFromTheirControllers) {
  put("/proc/self/cgroup", "5:memory:/job/inner\n3:cpu,cpuacct:/job\n1:name=systemd:/\n");
  put("/proc/self/mountinfo",
      "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  put("/sys/fs/cgroup/memory/job/inner/memory.limit_in_bytes", "4294967296\n");
  put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const Machine machine = detect_machine(root_);
  EXPECT_EQ(machine.memory_limit, std::int64_t{2} << 30);
  EXPECT_EQ(machine.memory_limit_from, "cgroup v1 /sys/fs/cgroup/memory/job");
  EXPECT_EQ(machine.cpu_quota, 4.0);
  EXPECT_EQ(machine.cores_usable, 4);
}

TEST_F(FakeMachine, HybridTakesTheSmallerOfBothVersions) {
  put("/proc/self/cgroup", "4:memory:/job\n0::/job\n");
  put("/proc/self/mountinfo",
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000000000\n");
  put("/sys/fs/cgroup/unified/job/memory.max", "2000000000\n");
  EXPECT_EQ(detect_machine(root_).memory_limit, 2'000'000'000);
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000000\n");
  EXPECT_EQ(detect_machine(root_).memory_limit_from, "cgroup v1 /sys/fs/cgroup/memory/job");
}

TEST_F(FakeMachine, ContainerSeesItsOwnGroupAtTheMountPoint) {
  put("/proc/self/cgroup", "4:memory:/docker/abc\n");
  put("/proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n");
  EXPECT_EQ(detect_machine(root_).memory_limit, 1'000'000'000);
  // A group above the namespace is shown as /.. and cannot be followed.
  use_v2("/../other");
  put("/sys/fs/cgroup/memory.max", "900000000\n");
  EXPECT_EQ(detect_machine(root_).memory_limit, 900'000'000);
}

TEST_F(FakeMachine, BlanksInMountPointsAreUnderstood) {
  put("/proc/self/cgroup", "0::/job\n");
  put("/proc/self/mountinfo", "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
  put("/my groups/job/memory.max", "1000000000\n");
  EXPECT_EQ(detect_machine(root_).memory_limit_from, "cgroup v2 /my groups/job");
}

TEST_F(FakeMachine, LimitAboveTheMachineIsTheMachine) {
  use_v2("/");
  put("/sys/fs/cgroup/memory.max", "1000000000000000\n");
  EXPECT_EQ(detect_machine(root_).memory_limit_from, "machine");
}

TEST_F(FakeMachine, AddressSpaceLimitCounts) {
  put("/proc/self/limits", "Max address space         500000000            unlimited            bytes     \n");
  EXPECT_EQ(detect_machine(root_).memory_limit, 500'000'000);
  EXPECT_EQ(detect_machine(root_).memory_limit_from, "rlimit");
}

TEST_F(FakeMachine, LastLevelCacheIsTheHighestThatHoldsData) {
  const std::string cache = "/sys/devices/system/cpu/cpu0/cache/index";
  const auto put_cache = [&](int index, const char* level, const char* type, const char* size) {
    put(cache + std::to_string(index) + "/level", level);
    put(cache + std::to_string(index) + "/type", type);
    put(cache + std::to_string(index) + "/size", size);
  };
  put_cache(0, "1\n", "Data\n", "32K\n");
  put_cache(1, "1\n", "Instruction\n", "64K\n");
  put_cache(2, "3\n", "Unified\n", "480M\n");
  put_cache(3, "2\n", "Unified\n", "2048K\n");
  EXPECT_EQ(detect_machine(root_).last_level_cache, std::int64_t{480} << 20);
}

TEST(Machine, AgreesWithTheSystem) {
  const Machine machine = detect_machine();
  EXPECT_EQ(machine.cores_online, ::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t affinity;
  ASSERT_EQ(::sched_getaffinity(::getpid(), sizeof affinity, &affinity), 0);
  EXPECT_LE(machine.cores_usable, CPU_COUNT(&affinity));
  EXPECT_EQ(machine.memory_total, std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE));
  ASSERT_TRUE(machine.memory_limit);
  EXPECT_LE(*machine.memory_limit, *machine.memory_total);
  EXPECT_THAT(machine.system, HasSubstr("Linux "));
  EXPECT_NE(machine.gpu, "");
}

TEST(Machine, InstructionSetsAreAmongTheFlagsOfTheSystem) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  std::set<std::string> sets;
  for (std::string name : instruction_sets()) {
    if (name == "sse4.2") name = "sse4_2";
    EXPECT_TRUE(flags.count(name)) << name;
    sets.insert(name);
  }
  for (const char* name :
       {"sse4_2", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16"}) {
    EXPECT_EQ(sets.count(name), flags.count(name)) << name;
  }
}

TEST(Machine, ResidentAndPeakMemoryFollowWhatIsTouched) {
  constexpr std::size_t kBytes = 64 << 20;
  const auto before = resident_memory();
  ASSERT_TRUE(before);
  // Not from malloc, which may keep what is freed.
  void* block = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  std::memset(block, 1, kBytes);
  EXPECT_GT(*resident_memory(), *before + static_cast<std::int64_t>(kBytes / 2));
  ASSERT_TRUE(peak_memory());
  EXPECT_GE(*peak_memory(), *before + static_cast<std::int64_t>(kBytes / 2));
  ASSERT_EQ(::munmap(block, kBytes), 0);
  if (reset_peak_memory()) {  // A kernel or container may refuse.
    EXPECT_LT(*peak_memory(), *before + static_cast<std::int64_t>(kBytes / 2));
  }
}

TEST(Gpu, WithoutTheDriversLibraryTheReasonIsSaid) {
  EXPECT_EQ(describe_gpu("libheadrace-no-such.so.1"), "unavailable: no NVML (libheadrace-no-such.so.1)");
  EXPECT_THAT(describe_gpu("libm.so.6"), StartsWith("unavailable: libm.so.6 has no nvml"));
}

NvmlTable fake_nvml() {
  NvmlTable nvml{};
  nvml.init = [] { return 0; };
  nvml.shutdown = [] { return 0; };
  nvml.error_text = [](int error) { return error == 9 ? "Driver Not Loaded" : "Unknown Error"; };
  nvml.device_count = [](unsigned* count) { return *count = 2, 0; };
  nvml.device_at = [](unsigned, void** device) { return *device = nullptr, 0; };
  nvml.device_name = [](void*, char* name, unsigned) { return std::strcpy(name, "NVIDIA H200"), 0; };
  nvml.device_memory = [](void*, void* memory) { return *static_cast<std::uint64_t*>(memory) = 141ULL << 30, 0; };
  nvml.device_capability = [](void*, int* major, int* minor) { return *major = 9, *minor = 0, 0; };
  nvml.driver_version = [](char* text, unsigned) { return std::strcpy(text, "550.54"), 0; };
  nvml.device_use = [](void*, void* use) { return static_cast<unsigned*>(use)[0] = 97, 0; };
  nvml.device_power = [](void*, unsigned* milliwatts) { return *milliwatts = 612'500, 0; };
  nvml.device_temperature = [](void*, int sensor, unsigned* degrees) { return *degrees = 61, sensor; };
  nvml.device_clock = [](void*, int type, unsigned* megahertz) { return *megahertz = type == 1 ? 1980 : 3201, 0; };
  return nvml;
}

TEST(Gpu, NameMemoryCapabilityAndDriverAreTold) {
  EXPECT_EQ(describe_gpu(fake_nvml()), "NVIDIA H200, 141.0 GiB, compute capability 9.0, driver 550.54; the first of 2");
}

TEST(Gpu, TheFirstDeviceIsTold) {
  const std::optional<GpuIdentity> gpu = Nvml(fake_nvml()).first_device();
  ASSERT_TRUE(gpu);
  EXPECT_EQ(gpu->name, "NVIDIA H200");
  EXPECT_EQ(gpu->capability_major, 9);
  EXPECT_EQ(gpu->memory_total, std::int64_t{141} << 30);
  NvmlTable table = fake_nvml();
  table.device_count = [](unsigned* count) { return *count = 0, 0; };
  EXPECT_FALSE(Nvml(table).first_device());
  EXPECT_FALSE(Nvml("libheadrace-no-such.so.1").first_device());
}

TEST(Gpu, FiguresAreThoseOfEachDevice) {
  const Nvml nvml(fake_nvml());
  EXPECT_EQ(nvml.why_not(), "");
  const std::vector<GpuFigures> figures = nvml.figures();
  ASSERT_EQ(figures.size(), 2U);
  EXPECT_EQ(figures[0].utilization, 0.97);
  EXPECT_EQ(figures[0].memory_total, std::int64_t{141} << 30);
  EXPECT_EQ(figures[0].memory_used, 0);
  EXPECT_EQ(figures[0].power_watts, 612.5);
  EXPECT_EQ(figures[0].temperature_celsius, 61);
  EXPECT_EQ(figures[0].clock_hertz, 1.98e9);
  EXPECT_EQ(figures[0].memory_clock_hertz, 3.201e9);
}

TEST(Gpu, AFigureThatTheDriverDoesNotTellIsNotZero) {
  NvmlTable table = fake_nvml();
  table.device_use = nullptr;                               // An older library has no such function,
  table.device_power = [](void*, unsigned*) { return 3; };  // a laptop's chip does not know it.
  const Nvml nvml(table);
  EXPECT_FALSE(nvml.figures().at(0).utilization);
  EXPECT_FALSE(nvml.figures().at(0).power_watts);
  EXPECT_TRUE(nvml.figures().at(0).temperature_celsius);

  const Nvml none("libheadrace-no-such.so.1");
  EXPECT_EQ(none.why_not(), "unavailable: no NVML (libheadrace-no-such.so.1)");
  EXPECT_TRUE(none.figures().empty());
}

TEST(Gpu, FailuresOfTheDriverAreTold) {
  NvmlTable nvml = fake_nvml();
  nvml.init = [] { return 9; };
  EXPECT_EQ(describe_gpu(nvml), "unavailable: Driver Not Loaded");
  nvml = fake_nvml();
  nvml.device_count = [](unsigned* count) { return *count = 0, 0; };
  EXPECT_EQ(describe_gpu(nvml), "unavailable: no GPU");
  nvml = fake_nvml();
  nvml.device_memory = [](void*, void*) { return 3; };
  EXPECT_EQ(describe_gpu(nvml), "NVIDIA H200, compute capability 9.0, driver 550.54; the first of 2");
}

TEST(WaitPolicy, SaysWhatTheEnvironmentMadeHoldAndWhyItDiffers) {
  const char* before = std::getenv("OMP_WAIT_POLICY");
  const std::string saved = before == nullptr ? "" : before;
  ::unsetenv("OMP_WAIT_POLICY");
  EXPECT_EQ(wait_policy_in_force(WaitPolicy::system).reason, "");
  EXPECT_EQ(wait_policy_in_force(WaitPolicy::active).applied, "system");
  EXPECT_NE(wait_policy_in_force(WaitPolicy::active).reason, "");
  ::setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  const Applied passive = wait_policy_in_force(WaitPolicy::passive);
  EXPECT_EQ(passive.requested, "passive");
  EXPECT_EQ(passive.applied, "passive");
  EXPECT_EQ(passive.reason, "");
  EXPECT_EQ(wait_policy_of_environment(), WaitPolicy::passive);
  EXPECT_EQ(wait_policy_in_force(WaitPolicy::active).applied, "passive");
  const Applied system = wait_policy_in_force(WaitPolicy::system);  // Asks for nothing, and so holds.
  EXPECT_EQ(system.requested, "system");
  EXPECT_EQ(system.applied, "system");
  EXPECT_EQ(system.reason, "");
  before == nullptr ? ::unsetenv("OMP_WAIT_POLICY") : ::setenv("OMP_WAIT_POLICY", saved.c_str(), 1);
}

TEST(WaitPolicy, NoneIsInForceWhereACountOfSpinsIsSet) {
  const std::array variables = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};
  std::array<std::optional<std::string>, 2> before;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (const char* found = std::getenv(variables[i])) before[i] = found;
  }
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  const Applied passive = wait_policy_in_force(WaitPolicy::passive);
  EXPECT_EQ(passive.requested, "passive");
  EXPECT_EQ(passive.applied, "system");
  EXPECT_EQ(passive.reason, "GOMP_SPINCOUNT is set, and libgomp takes it in place of a policy");
  EXPECT_EQ(wait_policy_of_environment(), WaitPolicy::system);
  EXPECT_EQ(wait_policy_in_force(WaitPolicy::system).reason, "");
  for (std::size_t i = 0; i < variables.size(); ++i) {
    before[i] ? ::setenv(variables[i], before[i]->c_str(), 1) : ::unsetenv(variables[i]);
  }
}

}  // namespace
}  // namespace headrace
