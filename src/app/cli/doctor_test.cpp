// doctor: each staged fault is named with its mend, and no healthy machine is accused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/doctor.h"
#include "app/cli/environment.h"
#include "app/cli/test_runs.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

auto finding(const std::string& code, const std::string& part_of_sentence, const std::string& part_of_advice) {
  return testing::AllOf(testing::Field("code", &Finding::code, code),
                        testing::Field("sentence", &Finding::sentence, HasSubstr(part_of_sentence)),
                        testing::Field("advice", &Finding::advice, HasSubstr(part_of_advice)));
}

// Without the variables that change how a job runs, whoever started the tests.
class NoJobVariables {
 public:
  NoJobVariables() {
    for (const auto& [name, value] : before_) unsetenv(name.c_str());
  }
  ~NoJobVariables() {
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  const std::vector<std::pair<std::string, std::string>> before_ = job_variables();
};

TEST_F(Folder, DoctorFindsWhatIsWrongWithAMachine) {
  Machine machine;
  machine.cores_online = 8;
  machine.cores_usable = 2;
  machine.memory_limit = 1LL << 30;
  machine.memory_limit_from = "cgroup v2 /x";
  write(folder_ / "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
  write(folder_ / "proc/loadavg", "7.50 0.1 0.1 1/100 1234\n");
  const NoJobVariables none;
  setenv("OMP_NUM_THREADS", "1", 1);
  const std::vector<Finding> findings = machine_findings(machine, folder_.string());
  unsetenv("OMP_NUM_THREADS");
  for (const char* code : {"few_cores", "low_memory", "no_huge_pages", "slow_clock", "busy", "variable_set"}) {
    EXPECT_THAT(codes(findings), testing::Contains(code));
  }
  EXPECT_THAT(findings.front().sentence, HasSubstr("2 of 8 cores"));
}

TEST_F(Folder, DoctorFindsNothingOnAGoodMachineAndGuessesNothing) {
  Machine machine;
  machine.cores_online = machine.cores_usable = 8;
  machine.memory_limit = 16LL << 30;
  const NoJobVariables none;
  setenv("HEADRACE_TORCH", "/opt/venv/lib/python3.11/site-packages/torch", 1);  // As an installed copy wants it.
  EXPECT_THAT(codes(machine_findings(machine, folder_.string())), testing::IsEmpty());
  unsetenv("HEADRACE_TORCH");
  machine.memory_limit.reset();
  EXPECT_THAT(codes(machine_findings(machine, folder_.string())), testing::IsEmpty());
}

// ---- Machines that are well ----

class HealthyMachines : public Folder {
 protected:
  HealthyMachines() {
    write(folder_ / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\n");
    write(folder_ / "proc/self/limits", "Max address space         unlimited            unlimited            bytes\n");
    has_cores("0-7");
    has_memory(32'000'000, 20'000'000);
    write(folder_ / "proc/loadavg", "0.40 0.1 0.1 1/100 1234\n");
  }

  void has_cores(const std::string& list) {
    write(folder_ / "sys/devices/system/cpu/online", list + "\n");
    write(folder_ / "proc/self/status", "Name:\tx\nCpus_allowed_list:\t" + list + "\n");
  }
  void has_memory(std::int64_t total_kb, std::int64_t available_kb) {
    write(folder_ / "proc/meminfo",
          "MemTotal: " + std::to_string(total_kb) + " kB\nMemAvailable: " + std::to_string(available_kb) + " kB\n");
  }
  void has_huge_pages(const std::string& setting) {
    write(folder_ / "sys/kernel/mm/transparent_hugepage/enabled", setting + "\n");
  }
  void has_governor(const std::string& governor, const std::string& driver) {
    write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor + "\n");
    write(folder_ / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver + "\n");
  }
  void has_nvidia_device() {
    write(folder_ / "sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n");
    write(folder_ / "sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n");
  }
  std::vector<Finding> findings(const std::string& gpu = "unavailable: no NVML (libnvidia-ml.so.1)") {
    Machine machine = detect_machine(folder_.string());
    machine.gpu = gpu;
    return machine_findings(machine, folder_.string());
  }

  const NoJobVariables none_;
};

TEST_F(HealthyMachines, AWorkstationIsNotAccused) {
  has_huge_pages("always [madvise] never");
  has_governor("performance", "acpi-cpufreq");
  EXPECT_THAT(codes(findings()), testing::IsEmpty());
}

TEST_F(HealthyMachines, ALaptopWhoseDriverCallsItsOrdinaryModePowersaveIsNotAccused) {
  has_huge_pages("[always] madvise never");
  has_governor("powersave", "intel_pstate");
  EXPECT_THAT(codes(findings()), testing::IsEmpty());
}

TEST_F(HealthyMachines, AVirtualMachineThatTellsLittleIsNotAccused) {
  has_cores("0-3");
  write(folder_ / "proc/loadavg", "1.90 0.1 0.1 1/100 1234\n");  // What two of four cores may do.
  EXPECT_THAT(codes(findings()), testing::IsEmpty());
}

TEST_F(HealthyMachines, AContainerWithMemoryOfItsOwnIsNotAccused) {
  write(folder_ / "proc/self/cgroup", "0::/job\n");
  write(folder_ / "proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  write(folder_ / "sys/fs/cgroup/job/memory.max", "8589934592\n");
  write(folder_ / "sys/fs/cgroup/job/memory.current", "8000000000\n");
  write(folder_ / "sys/fs/cgroup/job/memory.stat", "anon 1000\ninactive_file 4000000000\n");  // Files read once.
  write(folder_ / "sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_THAT(codes(findings()), testing::IsEmpty());
}

TEST_F(HealthyMachines, AServerWithAGpuIsNotAccused) {
  has_cores("0-63");
  has_nvidia_device();
  write(folder_ / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n");
  EXPECT_THAT(codes(findings("NVIDIA H100, 79.6 GiB, compute capability 9.0, driver 550.54.15")), testing::IsEmpty());
}

// ---- Faults of a machine ----

using StagedMachineFaults = HealthyMachines;

TEST_F(StagedMachineFaults, AGpuWithoutItsDriverIsNamedAndSoIsOneThatCannotBeReached) {
  has_nvidia_device();
  EXPECT_THAT(findings(), testing::ElementsAre(finding("no_gpu_driver", "0000:17:00.0", "Install NVIDIA's driver")));
  write(folder_ / "proc/driver/nvidia/version", "NVRM version\n");
  EXPECT_THAT(findings(),
              testing::ElementsAre(finding("gpu_not_reachable", "no NVML (libnvidia-ml.so.1)", "--gpus all")));
}

TEST_F(StagedMachineFaults, MemoryInUseIsNamedAt81PercentAndNotAt79) {
  has_memory(10'000'000, 2'100'000);
  EXPECT_THAT(codes(findings()), testing::IsEmpty());
  has_memory(10'000'000, 1'900'000);
  const std::vector<Finding> found = findings();
  ASSERT_EQ(codes(found), std::vector<std::string>{"memory_in_use"});
  EXPECT_EQ(found[0].sentence, "81 % of the memory is in use (machine)");
  EXPECT_THAT(found[0].advice, HasSubstr("End what else holds memory"));
}

TEST_F(StagedMachineFaults, MemoryInUseIsNamedJustBeyond80PercentAndNotAtIt) {
  has_memory(10'000'000, 2'000'000);
  EXPECT_THAT(codes(findings()), testing::IsEmpty());
  has_memory(10'000'000, 1'999'999);
  EXPECT_EQ(codes(findings()), std::vector<std::string>{"memory_in_use"});
}

TEST_F(StagedMachineFaults, ADebuggingVariableThatIsLeftOnIsNamedAndOneThatIsOffIsNot) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
  const std::vector<Finding> found = findings();
  setenv("CUDA_LAUNCH_BLOCKING", "0", 1);
  setenv("TORCH_DISTRIBUTED_DEBUG", "OFF", 1);
  const std::vector<std::string> off = codes(findings());
  unsetenv("CUDA_LAUNCH_BLOCKING");
  unsetenv("TORCH_DISTRIBUTED_DEBUG");
  ASSERT_EQ(codes(found), (std::vector<std::string>{"debug_mode", "debug_mode"}));
  EXPECT_EQ(found[0].sentence, "CUDA_LAUNCH_BLOCKING=1 is set: each kernel on a GPU is waited for");
  EXPECT_THAT(found[0].advice, HasSubstr("unset it"));
  EXPECT_THAT(off, testing::IsEmpty());
}

// ---- Faults of a run ----

class StagedRunFaults : public DoctorsRun {
 protected:
  StagedRunFaults() {
    Json environment = Json::parse(read(run_ / "environment.json"));
    environment["machine"]["cores_usable"] = 4;
    write(run_ / "environment.json", json_text(environment));
  }

  // Of 1,000 samples: 8 s of decoding on one thread beside 1 s of the loop.
  static Json loading() {
    const auto stage = [](const char* name, double busy_s, double waits_s) {
      return Json{{"name", name}, {"records", 1000}, {"busy_s", busy_s}, {"wait_for_input_s", waits_s}};
    };
    return {{"num_workers", 1},
            {"cpu_share", 1.0},
            {"stages", {stage("decode", 8, 0), stage("transform", 0, 0), stage("consume", 1, 7)}}};
  }
  Finding only_finding() {
    const std::vector<Finding> findings = checked().findings;
    EXPECT_EQ(findings.size(), 1U) << testing::PrintToString(codes(findings));
    return findings.empty() ? Finding{} : findings[0];
  }

  const NoJobVariables none_;
};

TEST_F(StagedRunFaults, HighMemoryNamesWhatGivesItBackTheMostFirst) {
  result_["memory"] = memory({1, 1});
  result_["memory"]["peak"]["bytes"] = 1e15;
  result_["memory"]["classes"] = {{"activations", {{"at_peak", 2e9}}}, {"cache", {{"at_peak", 4e9}}}};
  const Finding found = only_finding();
  EXPECT_EQ(found.code, "memory_nearly_full");
  EXPECT_LT(found.advice.find("data.cache"), found.advice.find("data.batch_size"));
  EXPECT_LT(found.advice.find("data.batch_size"), found.advice.find("model.activation_checkpointing"));
}

TEST_F(StagedRunFaults, ALowHitRateIsNamedWithTheSizeThatWouldDo) {
  result_["loading"]["cache"] = {{"hits", 50}, {"misses", 250}, {"bytes", 26e6}, {"samples_per_epoch", 100}};
  EXPECT_THAT(only_finding(), finding("low_hit_rate", "it is too small", "data.cache"));
}

TEST_F(StagedRunFaults, ALoopThatIsStarvedIsNamedWithTheKindOfWaiting) {
  result_["loading"] = loading();
  EXPECT_THAT(only_finding(), finding("loop_waits_for_data",
                                      "for 88 % of its time, with 1 loader thread: loading computes", "headrace tune"));
}

TEST_F(StagedRunFaults, GuidanceComesWithTheGainToExpectAndTheSettingToSet) {
  result_["loading"] = loading();
  const RunReport report = checked();
  ASSERT_FALSE(report.proposals.empty());
  EXPECT_EQ(report.proposals[0].setting, "data.cache = \"decoded\"");
  EXPECT_NEAR(*report.proposals[0].predicted_samples_per_second, 1000, 1);
  EXPECT_THAT(report.findings[0].advice, HasSubstr("Set data.cache = \"decoded\" (1000 samples/s predicted, now 125"));
}

TEST_F(StagedRunFaults, ALimitThatAProfileNamesComesWithWhatTheLoopGainsWithoutIt) {
  Json profile{{"format", "headrace-profile"}, {"version", 1}};
  profile["diagnosis"]["findings"] = {
      {{"code", "decode_limits"}, {"sentence", "decode: a step waits."}, {"advice", "Set data.cache."}},
      {{"code", "high_memory"}, {"sentence", "s"}, {"advice", "a"}}};
  profile["diagnosis"]["resources"]["losses"] = {
      {{"resource", "decode"}, {"gain", {{"middle", 0.31}, {"low", 0.25}, {"high", 0.37}}}}};
  write(run_ / "profile.json", json_text(profile));
  const std::vector<Finding> findings = checked().findings;
  ASSERT_EQ(codes(findings), (std::vector<std::string>{"decode_limits", "high_memory"}));
  EXPECT_EQ(findings[0].advice, "Set data.cache. Without this limit the loop would run 31 % faster (25 to 37 %).");
  EXPECT_EQ(findings[1].advice, "a");
}

TEST_F(StagedRunFaults, ARecordingThatCostsIsNamedWithWhatFewerStepsWouldSave) {
  TraceRecord trace;
  trace.names = {{"augment", "work"}};
  trace.threads = {"main"};
  trace.duration_ns = 100'000;
  for (std::int64_t i = 0; i < 4000; ++i) {
    trace.events.push_back({.name = 0, .thread = 0, .begin_ns = 25 * i, .end_ns = 25 * i + 10, .value = 0});
  }
  write_chrome_trace(trace, run_ / "trace.json");
  EXPECT_THAT(only_finding(), finding("profiling_overhead", "4000 spans", "every_steps=10"));
}

TEST_F(StagedRunFaults, SettingsForFindingFaultsAreNamed) {
  loaded_.recipe.train.step_guard.detect_anomaly = true;
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  { RunFolder run{invocation_, loaded_}; }
  unsetenv("CUDA_LAUNCH_BLOCKING");
  const std::vector<Finding> findings = checked().findings;
  ASSERT_EQ(codes(findings), (std::vector<std::string>{"debug_mode", "debug_mode"}));
  EXPECT_THAT(findings[0].sentence, HasSubstr("CUDA_LAUNCH_BLOCKING=1"));
  EXPECT_THAT(findings[1].sentence, HasSubstr("train.step_guard.detect_anomaly"));
  EXPECT_THAT(findings[1].advice, HasSubstr("set it to false"));
}

TEST_F(StagedRunFaults, OneDocumentHoldsSummaryCacheAndTrendOfMemory) {
  std::vector<double> grows;
  for (int i = 0; i < 256; ++i) grows.push_back(1e6 * i);
  result_["memory"] = memory(grows);
  result_["loading"]["cache"] = {{"hits", 300}, {"misses", 100}, {"bytes", 1e6}, {"samples_per_epoch", 100}};
  EXPECT_EQ(only_finding().code, "memory_growth");
  Invocation invocation;
  invocation.recipe = run_;
  invocation.json = (folder_ / "doctor.json").string();
  invocation.quiet = true;
  Console console{invocation};
  EXPECT_EQ(run_doctor(invocation, console), kExitVerdict);
  const Json document = Json::parse(read(folder_ / "doctor.json"));
  EXPECT_EQ(document["performance_summary"]["epochs"].size(), 2U);
  EXPECT_EQ(document["cache_stats"]["cache_hit_rate"], 0.75);
  EXPECT_EQ(document["memory_trends"]["cpu_memory_trend"]["trend"], "increasing");
  EXPECT_EQ(document["findings"][0]["code"], "memory_growth");
}

TEST_F(StagedRunFaults, ARunOfAScriptHasNoRecipeAndTellsWhetherTheScriptFailed) {
  const std::filesystem::path script = folder_ / "script";
  const auto written = [&](int exit_code) {
    const Json profile{{"format", "headrace-profile"},
                       {"version", 1},
                       {"script", "train.py"},
                       {"command", {"headrace", "profile", "train.py"}},
                       {"exit_code", exit_code}};
    write(script / "profile.json", json_text(profile));
    write(script / "trace.json", read(run_ / "trace.json"));
    write(script / "report.html", "<html></html>");
    return codes(check_run(script, detect_machine()).findings);
  };
  EXPECT_THAT(written(0), testing::IsEmpty());
  EXPECT_THAT(written(2), testing::ElementsAre("failed"));
}

}  // namespace
}  // namespace headrace
