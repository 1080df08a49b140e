#include "app/cli/run_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "app/cli/console.h"
#include "app/cli/doctor.h"
#include "app/cli/json_places.h"
#include "core/memory/trend.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using json_places::at;
using json_places::number;
using json_places::numbers;

constexpr std::size_t kWindows = 16;  // Of the moments that a run keeps.
constexpr double kSecondsMin = 60;
constexpr double kBytesMax = 1e18;  // No machine has more: a file that says so is wrong.

struct Growth {
  MemoryTrend trend;
  double bytes = 0;  // Over the second half of the run.
  double bytes_per_s = 0;
  double last = 0;  // Resident bytes.
};

// Only where one thing was done over and over: a tuner's trials differ. nullopt: too short, or not measured.
std::optional<Growth> growth_of(const RunContents& run) {
  const std::vector<double> resident = numbers(at(run.result, {"memory", "resident"}));
  const std::vector<double> seconds = numbers(at(run.result, {"memory", "at_s"}));
  if (resident.size() < 2 * kWindows || seconds.empty() || seconds.back() < kSecondsMin) return std::nullopt;
  std::vector<std::int64_t> values;
  for (const double value : resident) {
    if (!(value >= 0 && value <= kBytesMax)) return std::nullopt;
    values.push_back(static_cast<std::int64_t>(value));
  }
  const auto count = static_cast<double>(values.size());
  Growth growth{memory_trend(values, static_cast<std::int64_t>(values.size() / kWindows))};
  growth.bytes = growth.trend.bytes_per_value * count / 2;
  growth.bytes_per_s = growth.trend.bytes_per_value * count / seconds.back();
  growth.last = resident.back();
  return growth;
}

// The class of memory that holds most more at the end than in the middle.
std::string grown_class(const RunContents& run) {
  std::string name = "other";
  double most = 0;
  for (const auto& [known, entry] : at(run.result, {"memory", "classes"}).items()) {
    const std::vector<double> values = numbers(at(entry, {"values"}));
    if (values.empty() || values.back() - values[values.size() / 2] <= most) continue;
    most = values.back() - values[values.size() / 2];
    name = known;
  }
  return name;
}

void look_at_trend(const RunContents& run, std::vector<Finding>& findings) {
  constexpr double kGrowthMin = 0.02;
  const std::optional<Growth> growth = growth_of(run);
  if (!growth || growth->trend.trend != Trend::increasing || growth->bytes < kGrowthMin * growth->last) return;
  findings.push_back(
      {"memory_growth",
       fmt::format("memory grew by some {} ({:.0f} %) over the second half of the run, to {}",
                   megabytes_text(growth->bytes), 100 * growth->bytes / growth->last, megabytes_text(growth->last)),
       fmt::format("Most of it is in \"{}\"; the report's chart of memory shows since when.", grown_class(run))});
}

// A way to hold less, and how much less at the peak as far as its classes were counted.
struct Saving {
  double bytes = 0;
  std::string way;
};

double at_peak(const RunContents& run, const char* name) {
  return number(at(run.memory(), {"classes", name, "at_peak"})).value_or(0);
}

std::string smaller_batch(const RunContents& run) {
  if (!run.recipe || run.recipe->data.batch_size < 2) return "a smaller batch with more gradient accumulation";
  return fmt::format("data.batch_size = {} with train.gradient_accumulation_steps = {}",
                     run.recipe->data.batch_size / 2, 2 * run.recipe->train.gradient_accumulation_steps);
}

// The largest first; without those that would save nothing.
std::vector<Saving> savings(const RunContents& run) {
  const double activations = at_peak(run, "activations"), batches = at_peak(run, "batches");
  std::vector<Saving> all{{(activations + batches) / 2, smaller_batch(run)},
                          {at_peak(run, "cache"), "data.cache = \"none\", or less for data.cache_mib"}};
  const bool is_recomputed = run.recipe && run.recipe->model.activation_checkpointing != ActivationCheckpointing::none;
  // By blocks, half of what is saved for the backward (docs/guides/activation_checkpointing.md).
  if (!is_recomputed) all.push_back({activations / 2, "model.activation_checkpointing = \"blocks\", which takes time"});
  if (run.recipe && run.recipe->data.prefetch_batches > 1) {
    const auto ahead = static_cast<double>(run.recipe->data.prefetch_batches);
    all.push_back({batches * (ahead - 1) / (ahead + 2), "data.prefetch_batches = 1"});
  }
  std::erase_if(all, [](const Saving& saving) { return saving.bytes <= 0; });
  std::stable_sort(all.begin(), all.end(), [](const Saving& a, const Saving& b) { return a.bytes > b.bytes; });
  return all;
}

std::string advice_of(const std::vector<Saving>& savings) {
  if (savings.empty()) {
    return "Nobody counted what holds it: headrace profile does. A smaller data.batch_size, data.cache_mib or "
           "data.prefetch_batches takes less.";
  }
  std::string text = "What would give memory back, the most first:";
  for (const Saving& saving : savings) {
    text += fmt::format("{} {} (some {})", &saving == &savings.front() ? "" : ";", saving.way,
                        megabytes_text(saving.bytes));
  }
  return text + ".";
}

void look_at_limit(const RunContents& run, std::vector<Finding>& findings) {
  const auto peak = number(at(run.memory(), {"peak", "bytes"}));
  const auto limit = number(at(run.environment, {"machine", "memory_limit"}));
  if (!peak || !limit || !(*peak > kMemoryNearlyFull * *limit)) return;
  findings.push_back(
      {"memory_nearly_full",
       fmt::format("the run held {} of the {} that it may use", megabytes_text(*peak), megabytes_text(*limit)),
       advice_of(savings(run))});
}

}  // namespace

std::vector<Finding> memory_findings(const RunContents& run) {
  std::vector<Finding> findings;
  look_at_trend(run, findings);
  look_at_limit(run, findings);
  return findings;
}

Json memory_trends(const RunContents& run) {
  if (numbers(at(run.result, {"memory", "resident"})).empty()) {
    return "unavailable: result.json has no memory over time";
  }
  const std::optional<Growth> growth = growth_of(run);
  Json trend{{"trend", to_string(growth ? growth->trend.trend : Trend::insufficient_data)}};
  trend["bytes_per_s"] = growth ? Json(growth->bytes_per_s) : Json(nullptr);
  trend["windows"] = growth ? growth->trend.windows : 0;
  return {{"cpu_memory_trend", std::move(trend)}, {"gpu_memory_trend", "unavailable: no run records it"}};
}

}  // namespace headrace
