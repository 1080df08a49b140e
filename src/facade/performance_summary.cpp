#include "facade/performance_summary.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/hardware/machine.h"
#include "facade/setting_row.h"
#include "torch/device/accelerator.h"

namespace headrace::facade {
namespace {

using nlohmann::ordered_json;

constexpr const char* kNotTuned =
    "the live tuner knows loops of recipes (headrace train), and what is handed to headrace::LiveTuner as a LiveLoop; "
    "over a model and a loader of the caller's own C++ has none";
constexpr const char* kNotSearched = "wanted BatchOptimizer::optimize_batch_size(), which was not called";

bool is_applied(const std::vector<Applied>& status, std::string_view key) {
  return std::any_of(status.begin(), status.end(),
                     [key](const Applied& row) { return row.key == key && row.applied == "true"; });
}

ordered_json config_of(const PerformanceFacts& facts) {
  ordered_json json = ordered_json::parse(facts.config.to_json());
  json["mixed_precision"] = is_applied(facts.status, "enable_amp");
  json["compile_enabled"] = facts.compile_enabled;
  return json;
}

ordered_json features_of(const PerformanceFacts& facts) {
  ordered_json json = ordered_json::object();
  for (const Applied& row : facts.status) {
    const char* status = row.applied == "none" ? "not applied" : "applied";
    if (!is_requested(facts.config.get(row.key))) status = "";
    json[row.key] = {
        {"requested", row.requested}, {"applied", row.applied}, {"status", status}, {"reason", row.reason}};
  }
  return json;
}

// LibTorch sees no device before CUDA's half of the engine is open.
std::size_t cuda_devices() {
  std::string reason;
  return accelerator_of(c10::Device(c10::kCUDA, 0), reason) == nullptr ? 0 : at::getNumGPUs();
}

ordered_json hardware_of(const std::vector<Applied>& settings) {
  ordered_json json{{"usable_cores", detect_machine().cores_usable},
                    {"cuda_devices", cuda_devices()},
                    {"settings", ordered_json::object()}};
  for (const Applied& row : settings) {
    json["settings"][row.key] = {{"requested", row.requested}, {"applied", row.applied}, {"reason", row.reason}};
  }
  return json;
}

ordered_json json_of(const BatchProbe& probe) {
  ordered_json json{{"batch_size", probe.batch_size},
                    {"peak_bytes", probe.peak_bytes},
                    {"step_s", nullptr},
                    {"spread_s", nullptr},
                    {"ran_out", probe.ran_out}};
  if (!probe.ran_out) {
    json["step_s"] = probe.step_s;
    json["spread_s"] = probe.spread_s;
  }
  return json;
}

ordered_json batch_optimization_of(bool is_requested, const std::optional<BatchPlan>& plan) {
  if (!plan) {
    return {{"requested", is_requested},
            {"status", is_requested ? "not applied" : ""},
            {"reason", kNotSearched},
            {"probes", ordered_json::array()}};
  }
  ordered_json json{{"requested", is_requested},
                    {"status", "applied"},
                    {"reason", plan->reason},
                    {"probes", ordered_json::array()},
                    {"batch_size", plan->batch_size},
                    {"samples_per_second", nullptr},
                    {"memory_fraction", plan->memory_fraction},
                    {"search_s", plan->search_s}};
  for (const BatchProbe& probe : plan->probes) json["probes"].push_back(json_of(probe));
  if (plan->samples_per_second) json["samples_per_second"] = *plan->samples_per_second;
  return json;
}

ordered_json loops_of(const std::vector<TrainingResults>& loops) {
  ordered_json list = ordered_json::array();
  for (const TrainingResults& loop : loops) {
    ordered_json told = ordered_json::parse(loop.to_json());
    told.erase("features");
    list.push_back(std::move(told));
  }
  return list;
}

}  // namespace

Applied live_tuning_row(const PerformanceConfig& config) {
  if (!config->enable_profiling) return {"live_tuning", "false", "false", ""};
  return {"live_tuning", "true", "none", kNotTuned};
}

std::string performance_summary(const PerformanceFacts& facts) {
  const Applied tuning = live_tuning_row(facts.config);
  ordered_json json{
      {"config", config_of(facts)},
      {"features", features_of(facts)},
      {"compilation", nullptr},  // As Python has it where nothing was compiled.
      {"hardware", hardware_of(facts.hardware)},
      {"live_tuning",
       {{"status", "not applied"},
        {"reason", tuning.reason.empty() ? "enable_profiling is false" : tuning.reason},
        {"kept", ordered_json::array()},
        {"trials", ordered_json::object()}}},
      {"training_loops", loops_of(facts.loops)},
      {"profiling_summary", ordered_json::parse(facts.profiling.to_json())},
      {"performance_monitor", nullptr},
      {"batch_optimization", batch_optimization_of(facts.config->batch_size_optimization, facts.batch_plan)},
      {"cache_stats", facts.not_built},
      {"memory_trends", facts.not_built}};
  if (facts.monitor) json["performance_monitor"] = ordered_json::parse(*facts.monitor);
  return json.dump(2);
}

}  // namespace headrace::facade
