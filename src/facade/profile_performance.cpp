#include <fmt/format.h>
#include <headrace/facade/profile_performance.h>
#include <headrace/profile.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "facade/memory_groups.h"
#include "torch/device/accelerator.h"

namespace headrace::facade {
namespace {

constexpr double kGb = 1e9;
constexpr std::size_t kGroupsMax = 10;

std::string bytes_text(const std::optional<std::int64_t>& bytes) {
  return bytes ? fmt::format("{}", *bytes) : "unavailable";
}

std::vector<std::filesystem::path> write(const ProfileWindow& window, const ProfilePerformanceSettings& settings) {
  std::filesystem::create_directories(settings.log_dir);
  const std::string name = fmt::format("trace-{}-{}{}", ::getpid(), window.number, suffix_of(settings.form));
  return export_trace(window.record, settings.log_dir / name, settings.form);
}

std::vector<std::pair<std::string, double>> breakdown_of(std::map<std::string, std::int64_t> groups,
                                                         std::int64_t allocated) {
  for (const auto& [name, bytes] : groups) allocated -= bytes;
  groups["other"] = std::max<std::int64_t>(allocated, 0);
  std::vector<std::pair<std::string, double>> breakdown;
  for (const auto& [name, bytes] : groups) {
    if (bytes > 0) breakdown.emplace_back(name, static_cast<double>(bytes) / kGb);
  }
  std::stable_sort(breakdown.begin(), breakdown.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (breakdown.size() > kGroupsMax) breakdown.resize(kGroupsMax);
  return breakdown;
}

}  // namespace

ProfiledPerformance profile_performance(const std::function<void(const Batch&)>& train_step, Loader& loader,
                                        const ProfilePerformanceSettings& settings) {
  ProfiledPerformance result;
  const auto take = [&](const ProfileWindow& window) {
    for (std::filesystem::path& file : write(window, settings)) result.files.push_back(std::move(file));
  };
  headrace::Profile profile({.schedule = settings.schedule,
                             .on_trace_ready = take,
                             .record_shapes = settings.record_shapes,
                             .profile_memory = settings.profile_memory});
  try {
    for (Epoch epoch = loader.next_epoch(); const auto batch = epoch.next();) {
      train_step(*batch);
      profile.step();
    }
  } catch (...) {
    profile.stop();
    throw;
  }
  profile.stop();
  if (const ProfileWindow* const last = profile.last_window()) result.key_averages = operator_table(last->record);
  return result;
}

std::vector<OperatorStatistics> profile_memory(const Forward& forward, const TensorBatch& batch,
                                               std::size_t row_limit) {
  headrace::Profile profile({.record_shapes = true, .profile_memory = true});
  forward(batch).loss.backward();
  profile.stop();
  std::vector<OperatorStatistics> operators = operator_table(profile.last_window()->record);
  std::stable_sort(operators.begin(), operators.end(),
                   [](const OperatorStatistics& a, const OperatorStatistics& b) { return a.bytes > b.bytes; });
  std::printf("%s\n", table(operators, row_limit).c_str());
  return operators;
}

std::string table(std::span<const OperatorStatistics> operators, std::size_t row_limit) {
  std::string text = fmt::format("{:<60} {:>8} {:>12} {:>12} {:>14} {:>14}", "operator", "calls", "self us", "total us",
                                 "self bytes", "bytes");
  for (const OperatorStatistics& row : operators.first(std::min(row_limit, operators.size()))) {
    text += fmt::format("\n{:<60} {:>8} {:>12.1f} {:>12.1f} {:>14} {:>14}", row.name, row.calls,
                        1e-3 * static_cast<double>(row.self_ns), 1e-3 * static_cast<double>(row.total_ns),
                        bytes_text(row.self_bytes), bytes_text(row.bytes));
  }
  if (operators.size() > row_limit) text += fmt::format("\n{} more operators", operators.size() - row_limit);
  return text;
}

std::string MemoryUsage::to_json() const {
  nlohmann::ordered_json json{{"memory_stats",
                               {{"allocated", memory_stats.allocated},
                                {"reserved", memory_stats.reserved},
                                {"max_allocated", memory_stats.max_allocated},
                                {"max_reserved", memory_stats.max_reserved}}},
                              {"tensor_breakdown", nlohmann::ordered_json::object()}};
  for (const auto& [name, size] : tensor_breakdown) json["tensor_breakdown"][name] = size;
  return json.dump(2);
}

std::optional<MemoryUsage> profile_memory_usage(const ModelState* model, Optimizer* optimizer) {
  std::string reason;
  const Accelerator* const cuda = accelerator_of(c10::Device(c10::kCUDA, 0), reason);
  const std::optional<DeviceMemory> memory = cuda == nullptr ? std::nullopt : cuda->memory();
  if (!memory) return std::nullopt;
  const auto gigabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / kGb; };
  const DeviceMemory::Pool& all = memory->all;
  return MemoryUsage{{gigabytes(all.allocated.now), gigabytes(all.reserved.now), gigabytes(all.allocated.peak),
                      gigabytes(all.reserved.peak)},
                     breakdown_of(memory_groups(model, optimizer, c10::kCUDA), all.allocated.now)};
}

}  // namespace headrace::facade
