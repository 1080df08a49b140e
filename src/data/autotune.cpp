#include "data/detail/autotune.h"

#include <headrace/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace headrace::detail {
namespace {

constexpr double kHeadroom = 1.1;  // Of what is made above what is taken, so that uneven batches do not starve.
constexpr double kNear = 0.98;     // Of the best rate is as good as the best.
constexpr double kSomething = 0.995;
constexpr double kStarved = 0.02;  // Of its time the consumer may wait.
constexpr double kErrors = 2;      // Standard errors that a difference must exceed to be believed.
constexpr double kOtherCosts = 1.5;
constexpr double kTimeMin = 1e-9;
constexpr double kShareMin = 0.01;
constexpr std::int64_t kPauseFirst = 256, kPauseMax = 65'536;  // Deliveries.
constexpr std::size_t kDecisionsMax = 1000;

struct Model {
  Model(const LoaderRates& rates, const SettingBounds& bounds)
      : own_s(std::max(rates.own_s, kTimeMin)),
        service_s(std::max(rates.service_s, kTimeMin)),
        limit(bounds.cores / (service_s * std::max(rates.cpu_share, kShareMin))) {}

  double made(std::int64_t threads) const { return std::min(static_cast<double>(threads) / service_s, limit); }
  double cycle_s(std::int64_t threads) const { return std::max(own_s, 1 / made(threads)); }
  std::int64_t enough(std::int64_t low, std::int64_t high) const {
    const double wanted = kNear * std::min(kHeadroom / own_s, made(high));
    std::int64_t threads = low;
    while (threads < high && made(threads) < wanted) ++threads;
    return threads;
  }

  double own_s, service_s, limit;
};

// Two samples a thread lie in a full window, and the batch that the consumer takes next may be whole already.
std::int64_t depth_for(std::int64_t threads, const LoaderSetting& now, const SettingBounds& bounds) {
  const std::int64_t samples = 2 * threads + bounds.batch_size;
  const std::int64_t depth = (samples + bounds.batch_size - 1) / bounds.batch_size;
  return std::max(now.prefetch, std::min(depth, bounds.high.prefetch));
}

std::string counted(std::int64_t threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

std::string costs(const LoaderRates& rates) {
  return fmt::format("a batch takes the threads {:.3g} ms ({:.0f} % computing) and the consumer {:.3g} ms",
                     rates.service_s * 1e3, rates.cpu_share * 1e2, rates.own_s * 1e3);
}

std::size_t place(Proposal::Kind kind) {
  return static_cast<std::size_t>(kind);
}

bool differs(double a, double b) {
  return std::max(a, b) > kOtherCosts * std::max(std::min(a, b), 1e-6);
}

}  // namespace

std::optional<Proposal> propose(const LoaderRates& rates, const LoaderSetting& now, const SettingBounds& bounds) {
  if (now.threads == 0) return std::nullopt;  // The consumer loads by itself: nothing runs ahead of it.
  const Model model(rates, bounds);
  const double starved = rates.wait_s / std::max(rates.cycle_s(), kTimeMin);
  const std::int64_t in_window = bounds.high.prefetch * bounds.batch_size;
  const std::int64_t high = std::max(bounds.low.threads, std::min(bounds.high.threads, in_window));
  const std::int64_t enough = model.enough(bounds.low.threads, high);
  const auto pays = [&](std::int64_t threads) { return model.cycle_s(threads) < kNear * rates.cycle_s(); };
  if (starved > kStarved && enough > now.threads && pays(enough)) {
    return Proposal{Proposal::Kind::more_threads,
                    {enough, depth_for(enough, now, bounds)},
                    model.cycle_s(enough),
                    fmt::format("{}; {} can make {:.4g} batches/s, {} {:.4g}; the consumer waited {:.0f} % of the time",
                                costs(rates), counted(now.threads), model.made(now.threads), counted(enough),
                                model.made(enough), starved * 1e2)};
  }
  // Only where threads waited for room, too, was there ever more than the window holds.
  const bool is_uneven = rates.room_s > kStarved * (rates.service_s + rates.room_s);
  if (starved > kStarved && is_uneven && now.prefetch < bounds.high.prefetch && pays(now.threads)) {
    return Proposal{Proposal::Kind::deeper,
                    {now.threads, std::min(2 * now.prefetch, bounds.high.prefetch)},
                    model.cycle_s(now.threads),
                    fmt::format("{}; {} can make {:.4g} batches/s, and the consumer still waited {:.0f} % of the time: "
                                "batches take unequally long",
                                costs(rates), counted(now.threads), model.made(now.threads), starved * 1e2)};
  }
  if (now.threads - enough >= (now.threads + 3) / 4) {
    return Proposal{Proposal::Kind::fewer_threads,
                    {enough, now.prefetch},
                    std::max(model.cycle_s(enough), rates.cycle_s()),
                    fmt::format("{}; {} can make {:.4g} batches/s, which is enough", costs(rates), counted(enough),
                                model.made(enough))};
  }
  return std::nullopt;
}

void Autotuner::reset(const SettingBounds& bounds, const LoaderSetting& now) {
  bounds_ = bounds;
  now_ = now;
  trial_.reset();
  fewer_proposed_ = 0;
}

double Autotuner::samples_per_second(const LoaderRates& rates) const {
  return static_cast<double>(bounds_.batch_size) / std::max(rates.cycle_s(), kTimeMin);
}

// An entry for each setting that changes; how many.
std::size_t Autotuner::note(const LoaderSetting& to, const std::string& why, const LoaderRates& rates,
                            std::int64_t batch, double at_s) {
  const std::size_t before = decisions_.size();
  const auto add = [&](const char* what, std::int64_t from, std::int64_t wanted) {
    if (from == wanted) return;
    decisions_.push_back({batch, at_s, what, from, wanted, why, samples_per_second(rates), std::nullopt, false});
  };
  add(kThreadsKey, now_.threads, to.threads);
  add(kPrefetchKey, now_.prefetch, to.prefetch);
  const std::size_t added = decisions_.size() - before;
  if (decisions_.size() > kDecisionsMax) {
    decisions_.erase(decisions_.begin(), decisions_.end() - static_cast<std::ptrdiff_t>(kDecisionsMax));
  }
  now_ = to;
  return added;
}

bool Autotuner::is_paused(Proposal::Kind kind, const LoaderRates& rates, std::int64_t batch) const {
  const Pause& pause = pauses_[place(kind)];
  const bool same_costs = !differs(pause.costs.service_s, rates.service_s) && !differs(pause.costs.own_s, rates.own_s);
  return batch < pause.until && same_costs;
}

std::optional<LoaderSetting> Autotuner::step(const LoaderRates& rates, std::int64_t batch, double at_s) {
  if (trial_) {
    if (const auto back = judge(rates, batch, at_s)) return back;
  }
  const auto proposal = propose(rates, now_, bounds_);
  const bool fewer = proposal && proposal->kind == Proposal::Kind::fewer_threads;
  fewer_proposed_ = fewer ? fewer_proposed_ + 1 : 0;
  if (!proposal || is_paused(proposal->kind, rates, batch)) return std::nullopt;
  if (fewer && fewer_proposed_ < 2) return std::nullopt;  // It can wait; a quiet moment must not take threads away.
  fewer_proposed_ = 0;
  const LoaderSetting from = now_;
  const std::size_t entries = note(proposal->to, proposal->why, rates, batch, at_s);
  trial_ = Trial{proposal->kind, from, rates, proposal->cycle_s, entries};
  return now_;
}

// Ends the trial. The setting to go back to, when the change did not pay.
std::optional<LoaderSetting> Autotuner::judge(const LoaderRates& rates, std::int64_t batch, double at_s) {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  for (std::size_t i = decisions_.size() - trial.entries; i < decisions_.size(); ++i) {
    decisions_[i].after = samples_per_second(rates);
  }
  const double before_s = trial.before.cycle_s(), after_s = rates.cycle_s();
  const double doubt_s = kErrors * std::hypot(trial.before.error_s, rates.error_s);
  const bool slower = after_s > before_s / kNear + doubt_s;
  // More threads and memory must show: of what was predicted, no part that could be measured came. Depth may take
  // several steps to show.
  const double gained = trial.kind == Proposal::Kind::deeper ? kSomething : kNear;
  const bool in_vain = trial.kind != Proposal::Kind::fewer_threads && after_s > gained * before_s &&
                       before_s - trial.predicted_s > doubt_s;
  Pause& pause = pauses_[place(trial.kind)];
  if (!slower && !in_vain) {
    pause = {};
    return std::nullopt;
  }
  pause.length = std::clamp(2 * pause.length, kPauseFirst, kPauseMax);
  pause.until = batch + pause.length;
  pause.costs = trial.before;  // Those of the setting that is in force again.
  for (std::size_t i = decisions_.size() - trial.entries; i < decisions_.size(); ++i) decisions_[i].rolled_back = true;
  note(trial.from,
       fmt::format("rolled back: {:.4g} samples/s before, {:.4g} after", samples_per_second(trial.before),
                   samples_per_second(rates)),
       rates, batch, at_s);
  return now_;
}

void Autotuner::refuse(std::string_view what, std::int64_t in_force, const std::string& why) {
  trial_.reset();
  const auto last =
      std::find_if(decisions_.rbegin(), decisions_.rend(), [what](const auto& made) { return made.what == what; });
  if (last != decisions_.rend()) {
    last->to = in_force;
    last->rolled_back = last->to == last->from;
    last->why += "; " + why;
  }
  if (what == kThreadsKey) {
    now_.threads = in_force;
    bounds_.high.threads = std::max(in_force, bounds_.low.threads);
  } else {
    now_.prefetch = in_force;
    bounds_.high.prefetch = std::max(in_force, bounds_.low.prefetch);
  }
}

}  // namespace headrace::detail
