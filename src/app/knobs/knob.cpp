#include "app/knobs/knob.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace headrace {

namespace knobs {
#define HEADRACE_KNOB(name) Knob name();
#include "app/knobs/knobs.inc"
#undef HEADRACE_KNOB
}  // namespace knobs

namespace {

// Of a run that goes on; empty: it can take turns there.
std::string why_not_live(const Knob& knob) {
  switch (knob.switches) {
    case Switches::live_step:
      return "";
    case Switches::live_epoch:
      return "it takes effect between two epochs; headrace.tune tries it";
    case Switches::rebuild:
      return knob.keeps_both ? "" : "what it is about would have to be made anew; headrace.tune tries it";
    case Switches::new_process:
      return "it takes effect in a new process; headrace tune tries it";
  }
  return "";
}

std::string why_not(const Knob& knob, const KnobContext& context) {
  const auto refused = context.refused.find(knob.key);
  if (refused != context.refused.end()) return refused->second;
  const std::string reason = context.live ? why_not_live(knob) : "";
  // Where Python is the process, the knob says what to do in its place.
  const bool asks_knob = reason.empty() || knob.switches == Switches::new_process;
  const std::string own = asks_knob ? knob.not_applicable(context) : "";
  return own.empty() ? reason : own;
}

// Of one value of a knob that has others; null: it is not ruled out.
const std::string* why_not_value(const KnobValue& value, const KnobContext& context) {
  for (const auto& [key, text] : value.changes) {
    const auto refused = context.refused_values.find({key, text});
    if (refused != context.refused_values.end()) return &refused->second;
  }
  return nullptr;
}

// Of values that pay only after a part of the run, which pairs of a few steps do not show; empty: they pay at once.
std::string why_late(const std::vector<KnobValue>& values) {
  const bool is_late =
      std::any_of(values.begin(), values.end(), [](const KnobValue& value) { return value.late_share > 0; });
  return is_late ? "it pays once a whole epoch was made under it, and pairs of a few steps do not show that; "
                   "headrace.tune tries it"
                 : "";
}

// Where a key stands in the order of ORCH-12.
std::size_t priority(std::string_view key) {
  static constexpr std::array<std::string_view, 5> kTables{"compute", "data", "train", "optimizer", "model"};
  const std::string_view table = key.substr(0, key.find('.'));
  return static_cast<std::size_t>(std::find(kTables.begin(), kTables.end(), table) - kTables.begin());
}

Candidate candidate_of(const Knob& knob, KnobValue value, std::string_view bound, bool is_live) {
  Candidate candidate;
  candidate.name = std::move(value.name);
  candidate.sentence = std::move(value.sentence);
  candidate.divides_cores = knob.divides_cores && !value.changes.contains("data.loader");
  candidate.changes = std::move(value.changes);
  candidate.numerics = value.numerics.value_or(knob.numerics);
  candidate.resource = !value.resource.empty() ? value.resource : !knob.resource.empty() ? knob.resource : bound;
  candidate.late_share = value.late_share;
  candidate.key = knob.key;
  candidate.excludes = knob.excludes;
  candidate.switches = is_live && knob.keeps_both ? Switches::live_step : knob.switches;
  candidate.prepare_s = knob.prepare_s;
  candidate.switch_s = knob.switch_s;
  candidate.carries_over = knob.carries_over;
  candidate.changes_batches = knob.changes_batches || value.changes_batches;
  return candidate;
}

}  // namespace

const std::vector<Knob>& all_knobs() {
  static const std::vector<Knob> all{
#define HEADRACE_KNOB(name) knobs::name(),
#include "app/knobs/knobs.inc"
#undef HEADRACE_KNOB
  };
  return all;
}

bool needs_new_process(std::string_view key) {
  const auto& all = all_knobs();
  return std::any_of(all.begin(), all.end(),
                     [&](const Knob& knob) { return knob.key == key && knob.switches == Switches::new_process; });
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
    if (std::string reason = why_not(knob, context); !reason.empty()) {
      offered.not_tried.push_back({std::string(knob.name), std::string(knob.key), std::move(reason)});
      continue;
    }
    std::vector<KnobValue> values = knob.values(context);
    if (std::string late = context.live ? why_late(values) : ""; !late.empty()) {
      offered.not_tried.push_back({std::string(knob.name), std::string(knob.key), std::move(late)});
      continue;
    }
    for (KnobValue& value : values) {
      if (const std::string* reason = why_not_value(value, context)) {
        offered.not_tried.push_back({std::move(value.name), std::string(knob.key), *reason});
        continue;
      }
      Candidate candidate = candidate_of(knob, std::move(value), bound, context.live);
      candidate.promise_rank = std::ssize(offered.candidates) + 1;
      offered.candidates.push_back(std::move(candidate));
    }
  }
  if (context.live) {
    std::stable_sort(offered.candidates.begin(), offered.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return priority(a.key) < priority(b.key); });
    return offered;
  }
  std::stable_partition(offered.candidates.begin(), offered.candidates.end(),
                        [&](const Candidate& candidate) { return candidate.resource == bound; });
  std::stable_partition(offered.candidates.begin(), offered.candidates.end(),
                        [](const Candidate& candidate) { return candidate.switches != Switches::new_process; });
  return offered;
}

}  // namespace headrace
