#include <headrace/lr_scheduler.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "core/base/fail.h"
#include "core/options/schedules.h"

namespace headrace {
namespace {

constexpr double kPi = 3.14159265358979323846;

double real(std::int64_t number) {
  return static_cast<double>(number);
}

// 0 stands for the class's own.
double value_or(double value, double own) {
  return value == 0 ? own : value;
}

// Where the schedule stands: its step, and how many the run has for it.
struct Place {
  std::int64_t step;
  std::int64_t length;
};

std::int64_t steps_an_epoch(const RunLength& run) {
  return std::max<std::int64_t>(1, run.steps / run.epochs);
}

Place place_of(const LrSchedulerOptions& o, std::int64_t step, const RunLength& run) {
  if (moves_by_steps(o)) return {std::max<std::int64_t>(0, step - o.warmup_steps), run.steps - o.warmup_steps};
  return {step / steps_an_epoch(run), run.epochs};
}

double cosine(double lr, double eta_min, double turned) {
  return eta_min + (lr - eta_min) * (1 + std::cos(turned)) / 2;
}

double cosine_annealing(const SchedulerOptions& o, double lr, const Place& place) {
  if (o.T_max > 0) return cosine(lr, o.eta_min, kPi * real(place.step) / real(o.T_max));
  const std::int64_t last = place.length - 1;
  if (last <= 0) return lr;
  return cosine(lr, o.eta_min, kPi * real(std::min(place.step, last)) / real(last));
}

double warm_restarts(const SchedulerOptions& o, double lr, std::int64_t step) {
  if (o.T_0 == 0) {
    fail(ErrorCode::invalid_argument, "train: lr_scheduler: CosineAnnealingWarmRestarts wants T_0, found none");
  }
  std::int64_t period = o.T_0;
  if (o.T_mult == 1) step %= period;
  while (step >= period) {
    step -= period;
    period *= o.T_mult;
  }
  return cosine(lr, o.eta_min, kPi * real(step) / real(period));
}

// Of CyclicLR: how far up it is, and the height of its cycle, both as shares.
struct Cycle {
  double risen;
  double height;
};

Cycle cycle_at(const SchedulerOptions& o, std::int64_t step) {
  const double up = real(o.step_size_up), down = o.step_size_down > 0 ? real(o.step_size_down) : up;
  const double total = up + down, turn = up / total;
  const double number = std::floor(1 + real(step) / total);  // From 1.
  const double x = 1.0 + real(step) / total - number;
  const double risen = x <= turn ? x / turn : (x - 1) / (turn - 1);
  if (o.mode == SchedulerMode::triangular2) return {risen, 1 / std::pow(2.0, number - 1)};
  if (o.mode == SchedulerMode::exp_range) return {risen, std::pow(value_or(o.gamma, 1.0), real(step))};
  return {risen, 1.0};
}

// Of OneCycleLR: from `first` to `peak`, and to `last`; with three phases by way of `first`.
double one_cycle(const SchedulerOptions& o, const Place& place, double first, double peak, double last) {
  const std::int64_t total = o.total_steps > 0 ? o.total_steps : std::max<std::int64_t>(1, place.length);
  const double step = real(std::min(place.step, total - 1)), end = real(total - 1);
  const double rise_end = o.pct_start * real(total) - 1, fall_end = 2 * o.pct_start * real(total) - 2;
  const auto between = [&](double from, double to, double begin, double until) {
    const double share = until > begin ? (step - begin) / (until - begin) : 1.0;
    if (o.anneal_strategy == AnnealStrategy::linear) return (to - from) * share + from;
    return to + (from - to) / 2.0 * (std::cos(kPi * share) + 1);
  };
  if (step <= rise_end) return between(first, peak, 0, rise_end);
  if (!o.three_phase) return between(peak, last, rise_end, end);
  if (step <= fall_end) return between(peak, first, rise_end, fall_end);
  return between(first, last, fall_end, end);
}

double lr_of(const SchedulerOptions& o, double lr, const Place& place) {
  const std::int64_t step = place.step;
  const auto multiplied = [&](std::int64_t times) { return lr * std::pow(value_or(o.gamma, 0.1), real(times)); };
  switch (o.name) {
    case LrSchedulerName::none:
      return lr;
    case LrSchedulerName::ConstantLR:
      return step < o.total_iters ? lr * value_or(o.factor, 1.0 / 3) : lr;
    case LrSchedulerName::LinearLR:
      return lr * (o.start_factor +
                   (o.end_factor - o.start_factor) * real(std::min(o.total_iters, step)) / real(o.total_iters));
    case LrSchedulerName::StepLR:
      return multiplied(step / o.step_size);
    case LrSchedulerName::MultiStepLR:
      return multiplied(std::upper_bound(o.milestones.begin(), o.milestones.end(), step) - o.milestones.begin());
    case LrSchedulerName::ExponentialLR:
      if (o.gamma == 0) fail(ErrorCode::invalid_argument, "train: lr_scheduler: ExponentialLR wants gamma, found none");
      return multiplied(step);
    case LrSchedulerName::PolynomialLR:
      return lr * std::pow(1.0 - real(std::min(o.total_iters, step)) / real(o.total_iters), o.power);
    case LrSchedulerName::CosineAnnealingLR:
      return cosine_annealing(o, lr, place);
    case LrSchedulerName::CosineAnnealingWarmRestarts:
      return warm_restarts(o, lr, step);
    case LrSchedulerName::CyclicLR: {
      const Cycle cycle = cycle_at(o, step);
      return o.base_lr + (value_or(o.max_lr, lr) - o.base_lr) * cycle.risen * cycle.height;
    }
    case LrSchedulerName::OneCycleLR: {
      const double peak = value_or(o.max_lr, lr), first = peak / o.div_factor;
      return one_cycle(o, place, first, peak, first / o.final_div_factor);
    }
    case LrSchedulerName::ReduceLROnPlateau:
    case LrSchedulerName::SequentialLR:
    case LrSchedulerName::ChainedScheduler:
      break;
  }
  fail(ErrorCode::invalid_argument, "train: lr_scheduler: {} cannot be one of the schedulers of SequentialLR",
       choice_name(o.name));
}

// Each makes a multiple of the rate that those before it have left.
double chained_lr(const LrSchedulerOptions& o, double lr, const Place& place) {
  if (o.schedulers.empty()) {
    fail(ErrorCode::invalid_argument, "train: lr_scheduler: ChainedScheduler wants schedulers, found none");
  }
  for (const SchedulerOptions& scheduler : o.schedulers) {
    if (!multiplies_rate(scheduler)) {
      fail(ErrorCode::invalid_argument, "train: lr_scheduler: {} cannot be one of the schedulers of ChainedScheduler",
           choice_name(scheduler.name));
    }
    lr = lr_of(scheduler, lr, place);
  }
  return lr;
}

// One schedule of a sequence, and where it stands.
struct Current {
  const SchedulerOptions& scheduler;
  Place place;
};

// That in force: a sequence's, or the only one.
Current current_of(const LrSchedulerOptions& o, const Place& place) {
  if (o.name != LrSchedulerName::SequentialLR) return {o, place};
  if (o.schedulers.size() != o.milestones.size() + 1) {
    fail(ErrorCode::invalid_argument,
         "train: lr_scheduler: SequentialLR wants one scheduler more than milestones, found {} and {}",
         o.schedulers.size(), o.milestones.size());
  }
  const auto next = std::upper_bound(o.milestones.begin(), o.milestones.end(), place.step);
  const std::int64_t begin = next == o.milestones.begin() ? 0 : *std::prev(next);
  const std::int64_t end = next == o.milestones.end() ? place.length : *next;
  const auto number = static_cast<std::size_t>(next - o.milestones.begin());
  return {o.schedulers[number], {place.step - begin, end - begin}};
}

// Nothing where the schedule does not move it.
std::optional<double> momentum_of(const SchedulerOptions& o, const Place& place) {
  if (!o.cycle_momentum) return std::nullopt;
  if (o.name == LrSchedulerName::CyclicLR) {
    const double lowest = value_or(o.base_momentum, 0.8), highest = value_or(o.max_momentum, 0.9);
    const Cycle cycle = cycle_at(o, place.step);
    return highest - (highest - lowest) * cycle.risen * cycle.height;
  }
  if (o.name == LrSchedulerName::OneCycleLR) {
    const double lowest = value_or(o.base_momentum, 0.85), highest = value_or(o.max_momentum, 0.95);
    return one_cycle(o, place, highest, lowest, highest);
  }
  return std::nullopt;
}

// Of a sequence in which the schedule in force moves no momentum: torch leaves it where the last cycle before ended,
// and before the first cycle where the last of those to come begins.
std::optional<double> momentum_beside_cycles(const LrSchedulerOptions& o, const Place& place) {
  std::optional<double> before, later;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < o.schedulers.size(); ++i) {
    const std::int64_t end = i < o.milestones.size() ? o.milestones[i] : place.length;
    const bool is_over = i < o.milestones.size() && end <= place.step;
    const std::int64_t length = end - begin;
    const auto momentum = momentum_of(o.schedulers[i], {is_over ? length - 1 : 0, length});
    if (momentum) (is_over ? before : later) = momentum;
    begin = end;
  }
  return before ? before : later;
}

double reduced(const LrSchedulerOptions& o, double lr, std::int64_t reductions) {
  for (; reductions > 0; --reductions) {
    const double next = std::max(lr * value_or(o.factor, 0.1), o.min_lr);
    if (!(lr - next > o.eps)) break;  // Nor is any later one.
    lr = next;
  }
  return lr;
}

}  // namespace

bool moves_by_steps(const LrSchedulerOptions& o) {
  if (o.interval != SchedulerInterval::automatic) return o.interval == SchedulerInterval::step;
  return o.name == LrSchedulerName::CyclicLR || o.name == LrSchedulerName::OneCycleLR ||
         (o.name == LrSchedulerName::CosineAnnealingLR && o.T_max == 0);
}

double scheduled_lr(const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step, const RunLength& run,
                    const PlateauState& plateau) {
  if (step < lr_scheduler.warmup_steps) return lr * real(step + 1) / real(lr_scheduler.warmup_steps);
  if (lr_scheduler.name == LrSchedulerName::ReduceLROnPlateau) return reduced(lr_scheduler, lr, plateau.reductions);
  const Place place = place_of(lr_scheduler, step, run);
  if (lr_scheduler.name == LrSchedulerName::ChainedScheduler) return chained_lr(lr_scheduler, lr, place);
  const Current current = current_of(lr_scheduler, place);
  return lr_of(current.scheduler, lr, current.place);
}

double swa_lr(const TrainOptions& options, const LrSchedulerOptions& lr_scheduler, double lr, std::int64_t step,
              const RunLength& run, const PlateauState& plateau) {
  const std::int64_t begin = options.swa_start * steps_an_epoch(run);
  if (options.swa_start == 0 || options.swa_lr == 0 || step < begin) {
    return scheduled_lr(lr_scheduler, lr, step, run, plateau);
  }
  const double before = scheduled_lr(lr_scheduler, lr, begin - 1, run, plateau);
  const std::int64_t epochs = 1 + (step - begin) / steps_an_epoch(run);
  const double share = std::min(1.0, real(epochs) / real(std::max<std::int64_t>(1, options.swa_anneal_epochs)));
  const bool is_cosine = options.swa_anneal_strategy == AnnealStrategy::cos;
  const double turned = is_cosine ? (1 - std::cos(kPi * share)) / 2 : share;
  return options.swa_lr * turned + before * (1 - turned);
}

std::optional<double> scheduled_momentum(const LrSchedulerOptions& lr_scheduler, std::int64_t step,
                                         const RunLength& run) {
  const Place place = place_of(lr_scheduler, step, run);
  const Current current = current_of(lr_scheduler, place);
  const std::optional<double> moved = momentum_of(current.scheduler, current.place);
  if (moved || lr_scheduler.name != LrSchedulerName::SequentialLR) return moved;
  return momentum_beside_cycles(lr_scheduler, place);
}

}  // namespace headrace
