#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/hardware.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/hardware/machine.h"
#include "torch/device/accelerator.h"
#include "torch/tensor/compute.h"

namespace headrace::facade {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

bool has_cuda() {
  std::string reason;
  return accelerator_of(at::Device(at::kCUDA, 0), reason) != nullptr;
}

std::vector<std::string> keys_of(const HardwareSettings& settings) {
  std::vector<std::string> keys;
  for (const Applied& setting : settings.settings()) keys.push_back(setting.key);
  return keys;
}

std::optional<std::string> variable(const char* name) {
  const char* found = std::getenv(name);
  return found == nullptr ? std::nullopt : std::optional<std::string>(found);
}

TEST(HardwareSettings, TheExampleOfTheCpuTakesTheCoresOfThisProcessHandsThemToChildrenAndIsUndone) {
  const std::int64_t threads_before = compute_threads();
  const std::optional<std::string> variable_before = variable("OMP_NUM_THREADS");
  const Machine machine = detect_machine();
  const std::string usable = std::to_string(machine.cores_usable);

  HardwareSettings settings = optimize_cpu_settings();
  EXPECT_THAT(keys_of(settings), ElementsAre("compute_threads", "child_threads"));
  EXPECT_EQ(settings["compute_threads"].requested, std::to_string(machine.cores_online));
  EXPECT_EQ(settings["compute_threads"].applied, std::to_string(compute_threads()));
  EXPECT_EQ(settings["child_threads"].applied, usable);
  EXPECT_THAT(settings["child_threads"].reason, EndsWith("for child processes"));
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    EXPECT_EQ(variable(name), usable) << name;
  }
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { settings["threads"]; }),
            "facade: hardware settings: wanted one of compute_threads, child_threads, found 'threads'");

  settings.undo();
  EXPECT_EQ(compute_threads(), threads_before);
  EXPECT_EQ(variable("OMP_NUM_THREADS"), variable_before);
  ::setenv("OMP_NUM_THREADS", "3", 1);
  settings.undo();  // Changes nothing any more.
  EXPECT_EQ(variable("OMP_NUM_THREADS"), "3");
  variable_before ? ::setenv("OMP_NUM_THREADS", variable_before->c_str(), 1) : ::unsetenv("OMP_NUM_THREADS");
}

// Where there is no CUDA.
void expect_nothing_is_set() {
  const at::Context& context = at::globalContext();
  const auto flags = [&] {
    return std::vector<bool>{context.benchmarkCuDNN(), context.deterministicCuDNN(), context.allowTF32CuDNN(),
                             context.allowTF32CuBLAS()};
  };
  const std::vector<bool> before = flags();
  const HardwareSettings cuda = optimize_cuda_settings(), gpu = optimize_gpu();
  EXPECT_EQ(flags(), before);
  EXPECT_THAT(keys_of(cuda), ElementsAre("memory_fraction", "cudnn_deterministic", "cudnn_benchmark", "tf32_cudnn",
                                         "max_split_size_mb", "empty_cache"));
  EXPECT_THAT(keys_of(gpu),
              ElementsAre("power_mode", "tf32_matmul", "tf32_cudnn", "cudnn_deterministic", "cudnn_benchmark"));
  EXPECT_EQ(cuda["memory_fraction"].requested, "0.9");
  EXPECT_EQ(cuda["max_split_size_mb"].requested, "128");
  EXPECT_EQ(gpu["power_mode"].requested, "high");
  for (const HardwareSettings* settings : {&cuda, &gpu}) {
    for (const Applied& setting : settings->settings()) {
      EXPECT_EQ(setting.applied, "unavailable") << setting.key;
      EXPECT_THAT(setting.reason, HasSubstr("not applied: wanted CUDA, found none")) << setting.key;
    }
  }
  EXPECT_EQ(get_gpu_optimization_config(), std::nullopt);
}

// Where there is CUDA.
void expect_read_back_and_undone() {
  at::Context& context = at::globalContext();
  context.setBenchmarkCuDNN(false);
  context.setDeterministicCuDNN(true);
  HardwareSettings settings = optimize_cuda_settings();
  EXPECT_TRUE(context.benchmarkCuDNN());
  EXPECT_FALSE(context.deterministicCuDNN());
  EXPECT_EQ(settings["cudnn_benchmark"].applied, "true");
  EXPECT_EQ(settings["max_split_size_mb"].applied, "128");
  EXPECT_EQ(settings["memory_fraction"].applied, "none");
  settings.undo();
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_TRUE(context.deterministicCuDNN());
  context.setDeterministicCuDNN(false);
  EXPECT_NE(get_gpu_optimization_config(), std::nullopt);
}

TEST(HardwareSettings, TheExamplesOfAGpuAreReadBackAndWithoutOneEachRowSaysSo) {
  has_cuda() ? expect_read_back_and_undone() : expect_nothing_is_set();
}

TEST(GpuOptimizationConfig, IsTheRowOfItsNameElseOfItsCapabilityAndMemory) {
  const auto row = [](const char* name, int major = 0, std::int64_t memory = 0, bool literal = false) {
    return gpu_optimization_config({name, major, 0, memory}, literal);
  };
  constexpr std::int64_t kGb = 1'000'000'000;
  EXPECT_EQ(row("NVIDIA GeForce RTX 4090"), (GpuOptimizationConfig{1.5, true, 16, true}));
  EXPECT_EQ(row("NVIDIA GeForce RTX 4080"), row("NVIDIA GeForce RTX 4090"));
  EXPECT_EQ(row("NVIDIA GeForce RTX 3090"), (GpuOptimizationConfig{1.2, true, 12, true}));
  EXPECT_EQ(row("NVIDIA GeForce RTX 3080 Ti"), row("NVIDIA GeForce RTX 3090"));
  EXPECT_EQ(row("NVIDIA GeForce RTX 3070", 8, 80 * kGb), (GpuOptimizationConfig{1.0, true, 8, true}));
  EXPECT_EQ(row("NVIDIA GeForce RTX 3060"), row("NVIDIA GeForce RTX 3070"));
  EXPECT_EQ(row("NVIDIA H200", 9, 150 * kGb), (GpuOptimizationConfig{1.5, true, 16, true}));
  EXPECT_EQ(row("Tesla T4", 7, 15 * kGb), (GpuOptimizationConfig{1.0, true, 8, true}));
  EXPECT_EQ(row("NVIDIA A10", 8, 24 * kGb), (GpuOptimizationConfig{1.0, true, 8, true}));
  EXPECT_EQ(row("Tesla P100", 6, 16 * kGb), (GpuOptimizationConfig{0.8, false, 4, true}));
  EXPECT_EQ(row("NVIDIA H200", 9, 150 * kGb, /*literal=*/true), (GpuOptimizationConfig{0.8, false, 4, true}));
}

}  // namespace
}  // namespace headrace::facade
