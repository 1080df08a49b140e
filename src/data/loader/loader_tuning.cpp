#include "data/loader/detail/loader_tuning.h"

#include <headrace/trace.h>

#include <algorithm>
#include <exception>

#include "core/hardware/machine.h"
#include "data/loader/detail/consumer.h"

namespace headrace {
namespace detail {
namespace {

constexpr SpanName kThreads{"loader_num_workers", "mark"};  // After each decision.
constexpr SpanName kPrefetch{"loader_prefetch", "mark"};
constexpr SpanName kCacheHolds{"loader_cache", "mark"};

constexpr std::int64_t kThreadsOfAuto = 16;  // Threads that wait cost little more than their stacks.

}  // namespace

LoaderSetting LoaderTuning::in_force() const {
  return {settables_.num_workers.in_force(), settables_.prefetch.in_force(),
          static_cast<Cache>(settables_.cache.in_force())};
}

std::optional<std::int64_t> LoaderTuning::num_workers_for(std::int64_t wanted) {
  const bool was_automatic = wanted_.num_workers == AUTOTUNE, automatic = wanted == AUTOTUNE;
  const std::int64_t before = settables_.num_workers.in_force();
  if (automatic && was_automatic && before > 0) return std::nullopt;
  if (was_automatic && before > 0) found_.num_workers = before;
  if (!automatic) return wanted;
  return std::clamp<std::int64_t>(found_.num_workers > 0 ? found_.num_workers : before, 1, num_workers_max());
}

std::optional<std::int64_t> LoaderTuning::prefetch_for(std::int64_t wanted) {
  const bool was_automatic = wanted_.prefetch == AUTOTUNE, automatic = wanted == AUTOTUNE;
  const std::int64_t before = settables_.prefetch.in_force();
  if (automatic && was_automatic) return std::nullopt;
  if (was_automatic) found_.prefetch = before;
  if (!automatic) return wanted;
  return found_.prefetch > 0 ? found_.prefetch : before;
}

std::optional<Cache> LoaderTuning::cache_for(Cache wanted) {
  const bool was_automatic = wanted_.cache == Cache::automatic, automatic = wanted == Cache::automatic;
  if (automatic && was_automatic) return std::nullopt;
  if (was_automatic) found_.cache = static_cast<Cache>(settables_.cache.in_force());
  return automatic ? found_.cache : wanted;
}

void LoaderTuning::ask_for(const LoaderSetting& wanted, std::int64_t prefetch_max) {
  {
    std::lock_guard lock(mutex_);
    wanted_ = wanted;
  }
  const SettingBounds may_be = bounds(prefetch_max);  // What the machine is takes a while to ask.
  std::lock_guard lock(mutex_);
  const LoaderSetting now = in_force();
  tuner_.reset(may_be, now);
  meter_.restart(now.prefetch + kConsumerBatches);
}

SettingBounds LoaderTuning::bounds(std::int64_t prefetch_max) {
  const LoaderSetting now = in_force();
  SettingBounds all{.low = {now.num_workers, now.prefetch},
                    .high = {now.num_workers, now.prefetch},
                    .batches = batches_,
                    .batch_size = batch_size_,
                    .cores = 1};
  if (!is_automatic()) return all;
  all.cores = static_cast<double>(usable_cores());
  if (wanted_.num_workers == AUTOTUNE) {
    all.low.num_workers = 1;
    all.high.num_workers = num_workers_max();
  }
  if (wanted_.prefetch == AUTOTUNE) {
    all.low.prefetch = 1;
    all.high.prefetch = prefetch_max;
  }
  return all;
}

std::int64_t LoaderTuning::usable_cores() {
  if (cores_ == 0) cores_ = detect_machine().cores_usable;
  return cores_;
}

std::int64_t LoaderTuning::num_workers_max() {
  return num_workers_max_ > 0 ? num_workers_max_ : std::max(kThreadsOfAuto, 2 * usable_cores());
}

std::optional<LoaderSetting> LoaderTuning::decide(const CacheFit& fit, std::int64_t deliveries, double at_s) {
  auto rates = meter_.rates(batch_size_);
  if (!is_automatic() || !rates) return std::nullopt;
  rates->fit = fit;
  const LoaderSetting before = tuner_.now();
  const LoaderSetting next = tuner_.step(*rates, deliveries, at_s).value_or(before);
  // What the setting before has made must be gone first. A cache is full after the rest of this epoch and a whole one.
  const bool fills = next.cache != before.cache && next.cache != Cache::none;
  const std::int64_t settling = before.prefetch + kConsumerBatches;
  meter_.restart(next == before ? 0 : fills ? std::max(2 * batches_, settling) : settling);
  if (next == before) return std::nullopt;
  return next;
}

void LoaderTuning::put_in_force(const LoaderSetting& next) {
  const auto attempt = [this](const char* key, const Settable& settable, std::int64_t value) {
    if (settable.in_force() == value) return;
    try {
      settable.set(value);
    } catch (const std::exception& refused) {
      std::lock_guard lock(mutex_);
      tuner_.refuse(key, settable.in_force(), refused.what());
    }
  };
  attempt(kPrefetchKey, settables_.prefetch, next.prefetch);
  attempt(kNumWorkersKey, settables_.num_workers, next.num_workers);
  attempt(kCacheKey, settables_.cache, static_cast<std::int64_t>(next.cache));
  const LoaderSetting now = in_force();
  record_gauge(kThreads, now.num_workers);
  record_gauge(kPrefetch, now.prefetch);
  record_gauge(kCacheHolds, static_cast<std::int64_t>(now.cache));
}

std::string LoaderTuning::last_reason(const char* key) const {
  const auto& all = tuner_.decisions();
  const auto last = std::find_if(all.rbegin(), all.rend(), [key](const auto& made) { return made.what == key; });
  if (last != all.rend()) return last->why;
  return may_decide_ ? "as it began; nothing measured asks for another" : "as it began; data.auto_tune is false";
}

}  // namespace detail

std::string LoaderDecision::text_of(std::int64_t value) const {
  if (what != detail::kCacheKey) return std::to_string(value);
  for (const auto& [form, name] : choices(Cache{})) {
    if (static_cast<std::int64_t>(form) == value) return std::string(name);
  }
  return "unknown";
}

}  // namespace headrace
