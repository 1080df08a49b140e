#include "core/options/schedules.h"

#include <fmt/format.h>
#include <headrace/option_fields.h>
#include <headrace/option_tables.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/fail.h"

namespace headrace {
namespace {

using Name = LrSchedulerName;

// A parameter, and the classes that have it.
struct Parameter {
  std::string_view key;
  std::vector<Name> of;
};

const std::vector<Parameter>& parameters() {
  const std::vector<Name> cycles{Name::CyclicLR, Name::OneCycleLR}, one_cycle{Name::OneCycleLR};
  const std::vector<Name> plateau{Name::ReduceLROnPlateau};
  static const std::vector<Parameter> all{
      {"factor", {Name::ConstantLR, Name::ReduceLROnPlateau}},
      {"total_iters", {Name::ConstantLR, Name::LinearLR, Name::PolynomialLR}},
      {"start_factor", {Name::LinearLR}},
      {"end_factor", {Name::LinearLR}},
      {"step_size", {Name::StepLR}},
      {"gamma", {Name::StepLR, Name::MultiStepLR, Name::ExponentialLR, Name::CyclicLR}},
      {"milestones", {Name::MultiStepLR, Name::SequentialLR}},
      {"power", {Name::PolynomialLR}},
      {"T_max", {Name::CosineAnnealingLR}},
      {"eta_min", {Name::CosineAnnealingLR, Name::CosineAnnealingWarmRestarts}},
      {"T_0", {Name::CosineAnnealingWarmRestarts}},
      {"T_mult", {Name::CosineAnnealingWarmRestarts}},
      {"base_lr", {Name::CyclicLR}},
      {"max_lr", cycles},
      {"step_size_up", {Name::CyclicLR}},
      {"step_size_down", {Name::CyclicLR}},
      {"mode", {Name::CyclicLR, Name::ReduceLROnPlateau}},
      {"cycle_momentum", cycles},
      {"base_momentum", cycles},
      {"max_momentum", cycles},
      {"total_steps", one_cycle},
      {"pct_start", one_cycle},
      {"anneal_strategy", one_cycle},
      {"div_factor", one_cycle},
      {"final_div_factor", one_cycle},
      {"three_phase", one_cycle},
      {"patience", plateau},
      {"threshold", plateau},
      {"threshold_mode", plateau},
      {"cooldown", plateau},
      {"min_lr", plateau},
      {"eps", plateau},
  };
  return all;
}

// Keys that were set and do nothing: whoever wrote them expects them to act.
std::string idle_parameter(SchedulerOptions scheduler, const std::string& prefix) {
  SchedulerOptions untouched;
  const std::vector<Field> fields = fields_of(scheduler), defaults = fields_of(untouched);
  for (const Parameter& parameter : parameters()) {
    if (std::find(parameter.of.begin(), parameter.of.end(), scheduler.name) != parameter.of.end()) continue;
    const OptionValue normal = field_named(defaults, parameter.key).get();
    if (field_named(fields, parameter.key).get() == normal) continue;
    std::vector<std::string_view> names;
    for (const Name name : parameter.of) names.push_back(choice_name(name));
    return fmt::format("{0}{1} has no effect with {0}name = \"{2}\"; wanted {3}, or \"{4}\"", prefix, parameter.key,
                       choice_name(scheduler.name), to_toml(normal), fmt::join(names, "\" or \""));
  }
  return "";
}

std::string missing(const SchedulerOptions& scheduler, const std::string& prefix, std::string_view key,
                    std::string_view wanted) {
  return fmt::format("{0}{1} is missing; {0}name = \"{2}\" wants {3}", prefix, key, choice_name(scheduler.name),
                     wanted);
}

std::string milestones_contradiction(const SchedulerOptions& scheduler, const std::string& prefix) {
  std::int64_t last = 0;
  for (const std::int64_t milestone : scheduler.milestones) {
    if (milestone <= last) {
      return fmt::format("{}milestones has {} after {}; wanted numbers that rise", prefix, milestone, last);
    }
    last = milestone;
  }
  return "";
}

std::string mode_contradiction(const SchedulerOptions& scheduler, const std::string& prefix) {
  if (scheduler.mode == SchedulerMode::automatic) return "";
  const bool is_plateaus = scheduler.mode == SchedulerMode::min || scheduler.mode == SchedulerMode::max;
  if (is_plateaus == (scheduler.name == Name::ReduceLROnPlateau)) return "";
  return fmt::format("{0}mode is \"{1}\" and {0}name is \"{2}\"; wanted {3}", prefix, choice_name(scheduler.mode),
                     choice_name(scheduler.name), is_plateaus ? "triangular, triangular2 or exp_range" : "min or max");
}

bool is_cycle(const SchedulerOptions& scheduler) {
  return scheduler.name == Name::CyclicLR || scheduler.name == Name::OneCycleLR;
}

std::string cycle_contradiction(const SchedulerOptions& scheduler, const std::string& prefix) {
  if (!is_cycle(scheduler)) return "";
  if (scheduler.name == Name::CyclicLR && scheduler.gamma != 0 && scheduler.mode != SchedulerMode::exp_range) {
    return fmt::format("{0}gamma has no effect with {0}mode = \"{1}\"; wanted 0.0, or \"exp_range\"", prefix,
                       choice_name(scheduler.mode));
  }
  if (scheduler.max_lr != 0 && scheduler.base_lr > scheduler.max_lr) {
    return fmt::format("{0}base_lr is {1} and {0}max_lr is {2}; wanted the lower one first", prefix, scheduler.base_lr,
                       scheduler.max_lr);
  }
  const double base = scheduler.base_momentum, max = scheduler.max_momentum;
  if (!scheduler.cycle_momentum && (base != 0 || max != 0)) {
    return fmt::format("{0}{1}_momentum has no effect with {0}cycle_momentum = false; wanted 0.0, or true", prefix,
                       base != 0 ? "base" : "max");
  }
  if (max != 0 && base > max) {
    return fmt::format("{0}base_momentum is {1} and {0}max_momentum is {2}; wanted the lower one first", prefix, base,
                       max);
  }
  return "";
}

// Of one schedule, alone or in a sequence.
std::string scheduler_contradiction(const SchedulerOptions& scheduler, const std::string& prefix) {
  if (std::string idle = idle_parameter(scheduler, prefix); !idle.empty()) return idle;
  if (scheduler.name == Name::MultiStepLR && scheduler.milestones.empty()) {
    return missing(scheduler, prefix, "milestones", "one or more");
  }
  if (scheduler.name == Name::ExponentialLR && scheduler.gamma == 0) {
    return missing(scheduler, prefix, "gamma", "what lr is multiplied with at each step");
  }
  if (scheduler.name == Name::CosineAnnealingWarmRestarts && scheduler.T_0 == 0) {
    return missing(scheduler, prefix, "T_0", "the steps until the first restart");
  }
  if (scheduler.name == Name::ReduceLROnPlateau && scheduler.factor == 1) {
    return fmt::format("{}factor is 1; ReduceLROnPlateau wants one below 1", prefix);
  }
  if (std::string unfit = mode_contradiction(scheduler, prefix); !unfit.empty()) return unfit;
  if (std::string unfit = cycle_contradiction(scheduler, prefix); !unfit.empty()) return unfit;
  return milestones_contradiction(scheduler, prefix);
}

bool holds_others(const SchedulerOptions& scheduler) {
  return scheduler.name == Name::SequentialLR || scheduler.name == Name::ChainedScheduler;
}

// Of one schedule of a chain.
std::string chain_contradiction(const SchedulerOptions& scheduler, const std::string& prefix) {
  if (multiplies_rate(scheduler)) return "";
  if (scheduler.name == Name::CosineAnnealingLR) {
    return fmt::format(
        "{0}{1} is {2}; wanted 0: a ChainedScheduler holds a CosineAnnealingLR over the whole run down to 0 alone",
        prefix, scheduler.T_max != 0 ? "T_max" : "eta_min",
        scheduler.T_max != 0 ? fmt::format("{}", scheduler.T_max) : fmt::format("{}", scheduler.eta_min));
  }
  return fmt::format(
      "{}name is \"{}\", which sets the rate itself; wanted one that multiplies what a ChainedScheduler's others "
      "leave: ConstantLR, LinearLR, StepLR, MultiStepLR, ExponentialLR, PolynomialLR or CosineAnnealingLR",
      prefix, choice_name(scheduler.name));
}

std::string sequence_contradiction(const LrSchedulerOptions& options, const std::string& prefix) {
  if (!holds_others(options)) {
    if (options.schedulers.empty()) return "";
    return fmt::format("{0}schedulers has no effect with {0}name = \"{1}\"; wanted [], or \"{2}\" or \"{3}\"", prefix,
                       choice_name(options.name), choice_name(Name::SequentialLR), choice_name(Name::ChainedScheduler));
  }
  const bool is_chain = options.name == Name::ChainedScheduler;
  if (options.schedulers.empty()) return missing(options, prefix, "schedulers", "a list of tables");
  if (!is_chain && options.milestones.size() + 1 != options.schedulers.size()) {
    return fmt::format(
        "{0}milestones has {1} numbers and {0}schedulers {2} tables; wanted one number fewer than tables", prefix,
        options.milestones.size(), options.schedulers.size());
  }
  for (std::size_t i = 0; i < options.schedulers.size(); ++i) {
    const SchedulerOptions& scheduler = options.schedulers[i];
    const std::string of_this = fmt::format("{}schedulers[{}].", prefix, i);
    if (scheduler.name == Name::none) return of_this + "name is missing; wanted a schedule's";
    if (holds_others(scheduler) || (!is_chain && scheduler.name == Name::ReduceLROnPlateau)) {
      return fmt::format("{}name is \"{}\"; a {} cannot hold one{}", of_this, choice_name(scheduler.name),
                         choice_name(options.name),
                         scheduler.name == Name::ReduceLROnPlateau ? ", as torch's cannot" : "");
    }
    if (is_chain) {
      if (std::string found = chain_contradiction(scheduler, of_this); !found.empty()) return found;
    }
    if (std::string found = scheduler_contradiction(scheduler, of_this); !found.empty()) return found;
    if (is_cycle(scheduler) && options.interval == SchedulerInterval::automatic) {
      return fmt::format(
          "{}interval is \"auto\" and {}name is \"{}\"; wanted \"step\" or \"epoch\", which the milestones count",
          prefix, of_this, choice_name(scheduler.name));
    }
  }
  return "";
}

}  // namespace

bool multiplies_rate(const SchedulerOptions& scheduler) {
  switch (scheduler.name) {
    case Name::ConstantLR:
    case Name::LinearLR:
    case Name::StepLR:
    case Name::MultiStepLR:
    case Name::ExponentialLR:
    case Name::PolynomialLR:
      return true;
    case Name::CosineAnnealingLR:
      return scheduler.T_max == 0 && scheduler.eta_min == 0;
    default:
      return false;
  }
}

std::string schedule_contradiction(const LrSchedulerOptions& options, const std::string& prefix) {
  if (std::string found = scheduler_contradiction(options, prefix); !found.empty()) return found;
  if (options.name == Name::ReduceLROnPlateau && options.interval == SchedulerInterval::step) {
    return fmt::format("{}interval is \"step\"; ReduceLROnPlateau has a metric once an epoch", prefix);
  }
  if (options.name == Name::none && options.interval != SchedulerInterval::automatic) {
    return fmt::format("{0}interval has no effect with {0}name = \"none\"; wanted \"auto\", or a schedule", prefix);
  }
  return sequence_contradiction(options, prefix);
}

void check_lr_scheduler(const LrSchedulerOptions& options) {
  LrSchedulerOptions checked = options;
  try {
    for (const Field& field : with_elements(fields_of(checked, "lr_scheduler."))) {
      if (field.kind != FieldKind::tables) field.set(field.get());  // Checks the range.
    }
  } catch (const Error& error) {
    throw Error(error.code(), std::string("train: ") + error.what());
  }
  const std::string contradiction = schedule_contradiction(options, "lr_scheduler.");
  if (!contradiction.empty()) fail(ErrorCode::invalid_argument, "train: {}", contradiction);
}

}  // namespace headrace
