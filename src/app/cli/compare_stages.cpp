#include "app/cli/compare_stages.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/temporary_folder.h"
#include "insight/compare/stage_changes.h"
#include "insight/compare/stored_runs.h"

namespace headrace {
namespace {

// Seconds a step. nullopt: a signal asked us to stop.
std::optional<std::map<std::string, double>> profiled_stages(const ComparedCommand& script, double limit_s) {
  const TemporaryFolder folder;
  const std::filesystem::path profile = folder.path() / "profile";
  const std::vector<std::string> words{"-m", "headrace", "profile", "--out", profile.string(), "--quiet"};
  ComparedCommand profiled = script;
  profiled.arguments.insert(profiled.arguments.begin() + 1, words.begin(), words.end());
  if (!run_arm(profiled, limit_s)) return std::nullopt;
  return read_stored_runs(profile).runs.front().stage_s;
}

}  // namespace

bool needs_stages(const ComparedArm& old_arm, const ComparedArm& new_arm, const CompareVerdict& verdict) {
  const bool are_scripts = old_arm.kind == ArmKind::script && new_arm.kind == ArmKind::script;
  return are_scripts && verdict.stages.empty() &&
         std::any_of(verdict.metrics.begin(), verdict.metrics.end(), [](const MetricVerdict& metric) {
           const bool has_changed = metric.change == MetricChange::regressed || metric.change == MetricChange::improved;
           return has_changed && metric.rule.name.ends_with("_s");
         });
}

bool find_stages(const ComparedArm& old_arm, const ComparedArm& new_arm, double limit_s, CompareVerdict& verdict) {
  try {
    const auto old_s = profiled_stages(old_arm.command, limit_s);
    const auto new_s = old_s ? profiled_stages(new_arm.command, limit_s) : std::nullopt;
    if (!new_s) return false;
    StageChanges stages;
    stages.add(*old_s, *new_s);
    verdict.stages = stages.changes();
    verdict.stages_are_of_one_pair = true;
    verdict.remarks.emplace_back(
        "the parts of a step are of one further pair, run by headrace profile after the verdict: it costs a script "
        "some of its time, and one pair has no interval");
  } catch (const Error& error) {
    // The verdict stands without it.
    verdict.remarks.push_back(fmt::format("which part of a step has changed is unavailable: {}", error.what()));
  }
  return true;
}

}  // namespace headrace
