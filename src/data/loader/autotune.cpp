#include "data/loader/detail/autotune.h"

#include <fmt/format.h>
#include <headrace/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace headrace::detail {
namespace {

constexpr double kHeadroom = 1.1;  // Of what is made above what is taken, so that uneven batches do not starve.
constexpr double kNear = 0.98;     // Of the best rate is as good as the best.
constexpr double kSomething = 0.995;
constexpr double kCachePays = 0.95;  // Memory must bring more than a thread.
constexpr double kStarved = 0.02;    // Of its time the consumer may wait.
constexpr double kErrors = 2;        // Standard errors that a difference must exceed to be believed.
constexpr double kOtherCosts = 1.5;
constexpr double kTimeMin = 1e-9;
constexpr double kShareMin = 0.01;
constexpr std::int64_t kPauseFirst = 256, kPauseMax = 65'536;  // Deliveries.
constexpr std::int64_t kCachePauseEpochs = 8;                  // At least; filling one costs two.
constexpr std::size_t kDecisionsMax = 1000;

struct Model {
  Model(const LoaderRates& rates, const SettingBounds& bounds)
      : consumer_busy_s(std::max(rates.consumer_busy_s, kTimeMin)),
        service_s(std::max(rates.service_s, kTimeMin)),
        limit(bounds.cores / (service_s * std::max(rates.cpu_share, kShareMin))) {}

  double made(std::int64_t threads) const { return std::min(static_cast<double>(threads) / service_s, limit); }
  double cycle_s(std::int64_t threads) const { return std::max(consumer_busy_s, 1 / made(threads)); }
  std::int64_t enough(std::int64_t low, std::int64_t high) const {
    const double wanted = kNear * std::min(kHeadroom / consumer_busy_s, made(high));
    std::int64_t threads = low;
    while (threads < high && made(threads) < wanted) ++threads;
    return threads;
  }

  double consumer_busy_s, service_s, limit;
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
                     rates.service_s * 1e3, rates.cpu_share * 1e2, rates.consumer_busy_s * 1e3);
}

std::size_t place(Proposal::Kind kind) {
  return static_cast<std::size_t>(kind);
}

bool differs(double a, double b) {
  return std::max(a, b) > kOtherCosts * std::max(std::min(a, b), 1e-6);
}

}  // namespace

LoaderRates with_cache(LoaderRates rates, Cache cache) {
  const bool decoded = cache == Cache::decoded;
  const double kept = decoded ? rates.fit.decoded : cache == Cache::encoded ? rates.fit.encoded : 0.0;
  const double read_s = rates.read_s * (1 - kept), decode_s = rates.decode_s * (decoded ? 1 - kept : 1.0);
  // What waits is reading.
  const double waiting_s = rates.service_s * (1 - rates.cpu_share);
  const double reading_cpu = rates.reading_s > 0 ? std::clamp(1 - waiting_s / rates.reading_s, 0.0, 1.0) : 1.0;
  rates.service_s = std::max(rates.rest_s + read_s + decode_s, kTimeMin);
  rates.cpu_share = (rates.rest_s + read_s * reading_cpu + decode_s) / rates.service_s;
  return rates;
}

namespace {

// What all proposals look at.
struct Situation {
  Situation(const LoaderRates& measured, const LoaderSetting& in_force, const SettingBounds& allowed)
      : rates(measured),
        now(in_force),
        bounds(allowed),
        model(measured, allowed),
        starved(measured.wait_s / std::max(measured.cycle_s(), kTimeMin)) {
    const std::int64_t in_window = bounds.high.prefetch * bounds.batch_size;
    enough = model.enough(bounds.low.num_workers,
                          std::max(bounds.low.num_workers, std::min(bounds.high.num_workers, in_window)));
  }
  bool pays(std::int64_t threads) const { return model.cycle_s(threads) < kNear * rates.cycle_s(); }

  const LoaderRates& rates;
  const LoaderSetting& now;
  const SettingBounds& bounds;
  Model model;
  double starved;       // Part of the time.
  std::int64_t enough;  // Threads.
};

std::optional<Proposal> more_threads(const Situation& all) {
  const auto& [rates, now, bounds, model, starved, enough] = all;
  if (starved <= kStarved || enough <= now.num_workers || !all.pays(enough)) return std::nullopt;
  return Proposal{Proposal::Kind::more_threads,
                  {enough, depth_for(enough, now, bounds), now.cache},
                  model.cycle_s(enough),
                  fmt::format("{}; {} can make {:.4g} batches/s, {} {:.4g}; the consumer waited {:.0f} % of the time",
                              costs(rates), counted(now.num_workers), model.made(now.num_workers), counted(enough),
                              model.made(enough), starved * 1e2)};
}

std::optional<Proposal> deeper(const Situation& all) {
  const auto& [rates, now, bounds, model, starved, enough] = all;
  // Only where threads waited for room, too, was there ever more than the window holds.
  const bool is_uneven = rates.room_s > kStarved * (rates.service_s + rates.room_s);
  if (starved <= kStarved || !is_uneven || now.prefetch >= bounds.high.prefetch || !all.pays(now.num_workers)) {
    return std::nullopt;
  }
  return Proposal{Proposal::Kind::deeper,
                  {now.num_workers, std::min(2 * now.prefetch, bounds.high.prefetch), now.cache},
                  model.cycle_s(now.num_workers),
                  fmt::format("{}; {} can make {:.4g} batches/s, and the consumer still waited {:.0f} % of the time: "
                              "batches take unequally long",
                              costs(rates), counted(now.num_workers), model.made(now.num_workers), starved * 1e2)};
}

// The files rather than the pixels, which take more memory, where both give as much.
std::optional<Proposal> other_cache(const Situation& all) {
  const LoaderRates& rates = all.rates;
  if (all.starved <= kStarved) return std::nullopt;
  Cache best = all.now.cache;
  double best_s = rates.cycle_s();
  for (const Cache cache : {Cache::encoded, Cache::decoded}) {
    const double fit = cache == Cache::encoded ? rates.fit.encoded : rates.fit.decoded;
    if (cache == all.now.cache || fit == 0) continue;
    const LoaderRates then = with_cache(rates, cache);
    const double cycle_s = all.now.num_workers == 0 ? rates.consumer_busy_s + then.service_s
                                                    : Model(then, all.bounds).cycle_s(all.now.num_workers);
    if (cycle_s >= (best == all.now.cache ? kCachePays : kNear) * best_s) continue;
    best = cache;
    best_s = cycle_s;
  }
  if (best == all.now.cache) return std::nullopt;
  const bool decoded = best == Cache::decoded;
  return Proposal{
      Proposal::Kind::other_cache,
      {all.now.num_workers, all.now.prefetch, best},
      best_s,
      fmt::format("{}, of it {:.3g} ms to read and {:.3g} ms to decode what is not cached; {:.0f} % of the "
                  "samples can be kept {}; the consumer waited {:.0f} % of the time",
                  costs(rates), rates.read_s * 1e3, rates.decode_s * 1e3,
                  (decoded ? rates.fit.decoded : rates.fit.encoded) * 1e2, choice_name(best), all.starved * 1e2)};
}

std::optional<Proposal> fewer_threads(const Situation& all) {
  const auto& [rates, now, bounds, model, starved, enough] = all;
  if (now.num_workers - enough < (now.num_workers + 3) / 4) return std::nullopt;
  return Proposal{Proposal::Kind::fewer_threads,
                  {enough, now.prefetch, now.cache},
                  std::max(model.cycle_s(enough), rates.cycle_s()),
                  fmt::format("{}; {} can make {:.4g} batches/s, which is enough", costs(rates), counted(enough),
                              model.made(enough))};
}

}  // namespace

std::optional<Proposal> propose(const LoaderRates& rates, const LoaderSetting& now, const SettingBounds& bounds,
                                const std::array<bool, Proposal::kKinds>& paused) {
  const Situation all(rates, now, bounds);
  for (const auto& change : {more_threads, deeper, other_cache, fewer_threads}) {
    // Without threads the consumer loads by itself, and nothing runs ahead of it.
    if (now.num_workers == 0 && change != other_cache) continue;
    const auto proposal = change(all);
    if (proposal && !paused[place(proposal->kind)]) return proposal;
  }
  return std::nullopt;
}

void Autotuner::reset(const SettingBounds& bounds, const LoaderSetting& now) {
  bounds_ = bounds;
  now_ = now;
  trial_.reset();
  fewer_proposed_ = 0;
  cache_refused_ = false;
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
  add(kNumWorkersKey, now_.num_workers, to.num_workers);
  add(kPrefetchKey, now_.prefetch, to.prefetch);
  add(kCacheKey, static_cast<std::int64_t>(now_.cache), static_cast<std::int64_t>(to.cache));
  const std::size_t added = decisions_.size() - before;
  if (decisions_.size() > kDecisionsMax) {
    decisions_.erase(decisions_.begin(), decisions_.end() - static_cast<std::ptrdiff_t>(kDecisionsMax));
  }
  now_ = to;
  return added;
}

bool Autotuner::is_paused(const Pause& pause, const LoaderRates& rates, std::int64_t batch) {
  const bool same_costs =
      !differs(pause.costs.service_s, rates.service_s) && !differs(pause.costs.consumer_busy_s, rates.consumer_busy_s);
  return batch < pause.until && same_costs;
}

std::optional<LoaderSetting> Autotuner::step(const LoaderRates& rates, std::int64_t batch, double at_s) {
  if (trial_) {
    if (const auto back = judge(rates, batch, at_s)) return back;
  }
  std::array<bool, Proposal::kKinds> paused{};
  for (std::size_t kind = 0; kind < Proposal::kKinds; ++kind) paused[kind] = is_paused(pauses_[kind], rates, batch);
  paused[place(Proposal::Kind::other_cache)] |= cache_refused_;
  const auto proposal = propose(rates, now_, bounds_, paused);
  const bool fewer = proposal && proposal->kind == Proposal::Kind::fewer_threads;
  fewer_proposed_ = fewer ? fewer_proposed_ + 1 : 0;
  if (!proposal) return std::nullopt;
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
  // Seconds, whose squares do not overflow. Not std::hypot, which g++ 12 takes from glibc 2.35.
  const double before_squared = trial.before.error_s * trial.before.error_s;
  const double doubt_s = kErrors * std::sqrt(before_squared + rates.error_s * rates.error_s);
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
  const bool of_cache = trial.kind == Proposal::Kind::other_cache;
  const std::int64_t first = std::max(kPauseFirst, of_cache ? kCachePauseEpochs * bounds_.batches : 0);
  pause.length = std::clamp(2 * pause.length, first, std::max(first, kPauseMax));
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
  if (what == kNumWorkersKey) {
    now_.num_workers = in_force;
    bounds_.high.num_workers = std::max(in_force, bounds_.low.num_workers);
  } else if (what == kCacheKey) {
    now_.cache = static_cast<Cache>(in_force);
    cache_refused_ = true;
  } else {
    now_.prefetch = in_force;
    bounds_.high.prefetch = std::max(in_force, bounds_.low.prefetch);
  }
}

}  // namespace headrace::detail
