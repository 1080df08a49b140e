#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/facade/profile_performance.h>
#include <headrace/loader.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/temporary_folder.h"
#include "facade/memory_groups.h"
#include "facade/regression.h"
#include "torch/device/accelerator.h"
#include "torch/train/tiny_training.h"

namespace headrace::facade {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::map<std::string, std::int64_t> calls_in(const std::vector<OperatorStatistics>& operators) {
  std::map<std::string, std::int64_t> calls;
  for (const OperatorStatistics& one : operators) calls[one.name] += one.calls;
  return calls;
}

TEST(ProfilePerformance, TheExampleOfAScheduledProfileWritesTwoTraces) {
  const TemporaryFolder folder;
  const tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(60), tiny::batches_of(4), /*seed=*/1, /*training=*/true);
  int steps = 0;
  const auto train_step = [&](const Batch& batch) {
    training.trainer->step(batch);
    ++steps;
  };
  const ProfiledPerformance profile =
      profile_performance(train_step, loader, {.log_dir = folder.path() / "log" / "profile"});
  EXPECT_EQ(steps, 15);
  ASSERT_THAT(profile.files, SizeIs(2));
  for (const std::filesystem::path& file : profile.files) {
    EXPECT_TRUE(std::filesystem::exists(file));
    EXPECT_EQ(file.extension(), ".json");
    EXPECT_EQ(file.parent_path(), folder.path() / "log" / "profile");
  }
  EXPECT_EQ(calls_in(profile.key_averages).at("aten::linear"), 3);
  EXPECT_TRUE(profile.key_averages[0].bytes.has_value());
}

TEST(ProfilePerformance, WhatAStepThrowsPassesThroughBehindWhatWasRecorded) {
  const TemporaryFolder folder;
  const tiny::Training training;
  Loader loader(std::make_shared<tiny::Images>(60), tiny::batches_of(4), /*seed=*/1, /*training=*/true);
  int steps = 0;
  const auto train_step = [&](const Batch& batch) {
    if (++steps == 4) throw std::runtime_error("mine");
    training.trainer->step(batch);
  };
  EXPECT_THROW(profile_performance(train_step, loader, {.log_dir = folder.path(), .form = TraceForm::perfetto}),
               std::runtime_error);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files.push_back(entry.path());
  ASSERT_THAT(files, SizeIs(1));  // Of the steps from 2 on.
  EXPECT_EQ(files[0].extension(), ".perfetto-trace");
  EXPECT_EQ(loader.next_epoch_index(), 1);
}

TEST(ProfileMemory, TheExamplePrintsWhatKeepsMostMemoryAndReturnsAll) {
  Regression regression;
  testing::internal::CaptureStdout();
  const auto operators = profile_memory(regression.forward(), batches(1)[0], /*row_limit=*/2);
  const std::string printed = testing::internal::GetCapturedStdout();
  EXPECT_EQ(printed, table(operators, 2) + "\n");
  EXPECT_THAT(printed, HasSubstr(" more operators"));
  EXPECT_EQ(calls_in(operators).at("aten::linear"), 2);
  for (std::size_t i = 1; i < operators.size(); ++i) EXPECT_GE(operators[i - 1].bytes, operators[i].bytes);
  for (const at::Tensor& parameter : regression.tensors()) EXPECT_TRUE(parameter.grad().defined());
}

TEST(ProfileMemory, WhatWasNotRecordedIsUnavailableInTheTable) {
  OperatorStatistics row;
  row.name = "aten::relu";
  row.calls = 7;
  EXPECT_THAT(table(std::vector{row}), HasSubstr("unavailable    unavailable"));
}

TEST(ProfileMemoryUsage, TheExampleWithoutCudaHasNothingToTell) {  // EX-004-13
  Regression regression;
  Optimizer optimizer = regression.descent();
  std::string reason;
  const bool has_cuda = accelerator_of(at::Device(at::kCUDA, 0), reason) != nullptr;
  EXPECT_EQ(profile_memory_usage(&regression.model, &optimizer).has_value(), has_cuda);
  EXPECT_EQ(profile_memory_usage().has_value(), has_cuda);
}

TEST(ProfileMemoryUsage, ForJsonHasStatisticsAndGroupsTheLargestFirst) {
  const MemoryUsage usage{{.allocated = 0.5, .max_reserved = 2}, {{"parameters layer4", 0.25}, {"other", 0.125}}};
  const auto json = nlohmann::ordered_json::parse(usage.to_json());
  EXPECT_EQ(json["memory_stats"]["allocated"], 0.5);
  EXPECT_EQ(json["memory_stats"]["max_reserved"], 2);
  EXPECT_EQ(json["tensor_breakdown"].begin().key(), "parameters layer4");
  EXPECT_EQ(json["tensor_breakdown"]["other"], 0.125);
}

TEST(MemoryGroups, ByRoleAndModuleEachPieceOfMemoryOnce) {
  Regression regression;
  Optimizer optimizer = regression.descent(0.05, /*momentum=*/0.9);
  EXPECT_TRUE(memory_groups(nullptr, nullptr, at::kCPU).empty());
  auto groups = memory_groups(&regression.model, nullptr, at::kCPU);
  // The optimizer's parameters are the model's.
  EXPECT_EQ(groups.at("parameters 0"), 4 * (4 * 8 + 8));
  EXPECT_EQ(groups.at("parameters 2"), 4 * (8 + 1));
  EXPECT_THAT(groups, SizeIs(2));
  regression.loss(batches(1)[0]).backward();
  optimizer.step(0.05);
  groups = memory_groups(&regression.model, &optimizer, at::kCPU);
  EXPECT_EQ(groups.at("gradients 0"), groups.at("parameters 0"));
  std::int64_t state = 0;
  for (const auto& [name, bytes] : groups) {
    if (name.starts_with("optimizer ")) state += bytes;
  }
  EXPECT_EQ(state, optimizer.state_bytes());  // Some of several modules may lie in one piece.
  EXPECT_TRUE(memory_groups(&regression.model, &optimizer, at::kCUDA).empty());
}

}  // namespace
}  // namespace headrace::facade
