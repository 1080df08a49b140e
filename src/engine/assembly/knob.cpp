#include "engine/assembly/knob.h"

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

namespace knobs {
#define HEADRACE_KNOB(name) Knob name();
#include "engine/assembly/knobs.inc"
#undef HEADRACE_KNOB
}  // namespace knobs

namespace {

Candidate candidate_of(const Knob& knob, KnobValue value, std::string_view bound) {
  Candidate candidate;
  candidate.name = std::move(value.name);
  candidate.sentence = std::move(value.sentence);
  candidate.divides_cores = knob.divides_cores && value.changes.size() == 1;
  candidate.changes = std::move(value.changes);
  candidate.numerics = value.numerics.value_or(knob.numerics);
  candidate.resource = !value.resource.empty() ? value.resource : !knob.resource.empty() ? knob.resource : bound;
  candidate.late_share = value.late_share;
  candidate.key = knob.key;
  candidate.excludes = knob.excludes;
  candidate.switches = knob.switches;
  candidate.prepare_s = knob.prepare_s;
  candidate.switch_s = knob.switch_s;
  candidate.carries_over = knob.carries_over;
  return candidate;
}

}  // namespace

const std::vector<Knob>& all_knobs() {
  static const std::vector<Knob> all{
#define HEADRACE_KNOB(name) knobs::name(),
#include "engine/assembly/knobs.inc"
#undef HEADRACE_KNOB
  };
  return all;
}

Settings process_settings() {
  Settings settings;
  for (const Knob& knob : all_knobs()) {
    if (knob.in_force != nullptr) settings.emplace(knob.key, knob.in_force());
  }
  return settings;
}

Applied apply_process_setting(const std::string& key, const std::string& value) {
  const auto& all = all_knobs();
  const auto knob = std::find_if(all.begin(), all.end(), [&](const Knob& known) { return known.key == key; });
  if (knob == all.end() || knob->apply == nullptr) {
    fail(ErrorCode::invalid_argument, "assembly: {} is no setting of the process", key);
  }
  Recipe recipe;
  apply_settings(recipe, {{key, value}});
  return knob->apply(recipe);
}

KnobContext context_of(const Recipe& recipe, const Machine& machine, const DataContext& data) {
  KnobContext context;
  context.recipe = recipe;
  context.cores = machine.cores_usable;
  context.data = data;
  return context;
}

Offer offer(const KnobContext& context, std::string_view bound) {
  Offer offered;
  for (const Knob& knob : all_knobs()) {
    const auto refused = context.refused.find(knob.key);
    std::string reason = refused != context.refused.end() ? refused->second : knob.not_applicable(context);
    if (!reason.empty()) {
      offered.not_tried.push_back({std::string(knob.name), std::string(knob.key), std::move(reason)});
      continue;
    }
    for (KnobValue& value : knob.values(context)) {
      offered.candidates.push_back(candidate_of(knob, std::move(value), bound));
    }
  }
  std::stable_partition(offered.candidates.begin(), offered.candidates.end(),
                        [&](const Candidate& candidate) { return candidate.resource == bound; });
  return offered;
}

}  // namespace headrace
