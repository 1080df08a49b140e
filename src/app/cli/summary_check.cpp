#include "app/cli/summary_check.h"

#include <optional>
#include <string>

#include "app/cli/console.h"
#include "app/cli/json_places.h"
#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using json_places::at;
using json_places::number;
using json_places::text;

constexpr std::int64_t kFileBytesMax = 64 << 20;

Json summary_of(const std::filesystem::path& file) {
  Json summary = Json::parse(read_file(file, kFileBytesMax), nullptr, /*allow_exceptions=*/false);
  if (!at(summary, {"features"}).is_object() || !at(summary, {"config"}).is_object()) {
    fail(ErrorCode::corrupt_data,
         "cli: {}: wanted a run's folder, or the JSON of get_performance_summary() with \"config\" and \"features\", "
         "found {}",
         file.string(), summary.is_discarded() ? "no JSON" : "other JSON");
  }
  return summary;
}

// "default: no C++ compiler; eager: ..." of those that were tried and dropped; empty: none was.
std::string dropped_attempts(const Json& compilation) {
  std::string dropped;
  for (const Json& attempt : at(compilation, {"attempts"})) {
    const std::string reason = text(at(attempt, {"reason"}));
    const bool was_dropped = at(attempt, {"tried"}) == true && at(attempt, {"applied"}) == false && reason != "undone";
    if (!was_dropped) continue;
    dropped += fmt::format("{}{}: {}", dropped.empty() ? "" : "; ", text(at(attempt, {"mode"})), reason);
  }
  return dropped;
}

void look_at_compilation(const Json& summary, std::vector<Finding>& findings) {
  const Json& compilation = at(summary, {"compilation"});
  const std::string dropped = dropped_attempts(compilation);
  if (dropped.empty() || text(at(compilation, {"applied"})) != "eager") return;
  findings.push_back(
      {"compile_failed", "the model runs as it is written, as every mode of torch.compile was dropped: " + dropped,
       "Remove the reason of the first mode. If that is not worth it, set enable_compile to False, which "
       "spares the attempts."});
}

void look_at_memory(const Json& summary, const Machine& here, std::vector<Finding>& findings) {
  const auto peak = number(at(summary, {"performance_monitor", "memory", "peak"}));
  if (!peak || !here.memory_limit) return;
  const auto limit = static_cast<double>(*here.memory_limit);
  if (!(*peak > kMemoryNearlyFull * limit)) return;
  findings.push_back(
      {"memory_nearly_full",
       fmt::format("the run held {} of the {} that may be used here", megabytes_text(*peak), megabytes_text(limit)),
       "Take a smaller batch with gradient accumulation, or enable_gradient_checkpointing; "
       "hr.memory_by_role says what holds it."});
}

std::string known(const std::string& value) {
  return value.empty() ? "unavailable" : value;
}

}  // namespace

RunReport check_summary(const std::filesystem::path& file, const Machine& here) {
  Json summary = summary_of(file);
  RunReport report;
  report.facts = {{"Level", known(text(at(summary, {"config", "optimization_level"})))},
                  {"Compiled", known(text(at(summary, {"compilation", "applied"})))},
                  {"Live tuning", known(text(at(summary, {"live_tuning", "status"})))}};
  look_at_compilation(summary, report.findings);
  look_at_memory(summary, here, report.findings);
  for (const char* name : {"cache_stats", "memory_trends"}) {
    report.figures[name] = at(summary, {name}).is_null() ? Json("unavailable: the summary has none") : summary[name];
    summary.erase(name);
  }
  report.figures["performance_summary"] = std::move(summary);
  return report;
}

}  // namespace headrace
