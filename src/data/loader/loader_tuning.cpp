// The loader's own tuning: threads, depth and the cache where they are AUTOTUNE, from what it measures between two
// decisions.
#include <headrace/trace.h>

#include <algorithm>
#include <exception>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "data/loader/detail/loader_impl.h"

namespace headrace {
namespace {

using detail::kConsumerBatches;
using detail::LoaderSetting;
using Joining = detail::WorkerPool::Joining;

constexpr SpanName kThreads{"loader_num_workers", "mark"};  // After each decision.
constexpr SpanName kPrefetch{"loader_prefetch", "mark"};
constexpr SpanName kCacheHolds{"loader_cache", "mark"};

constexpr std::int64_t kThreadsOfAuto = 16;  // Threads that wait cost little more than their stacks.

std::string number_text(std::int64_t wanted) {
  return wanted == AUTOTUNE ? "auto" : std::to_string(wanted);
}

}  // namespace

void Loader::Impl::set_num_workers(std::int64_t wanted) {
  std::lock_guard resize_lock(resizing);
  const bool was_automatic = threads_wanted == AUTOTUNE, automatic = wanted == AUTOTUNE;
  if (automatic && was_automatic && workers.count() > 0) return;  // It goes on with what it has found.
  const std::int64_t before = workers.count();
  if (was_automatic && before > 0) autotuned.num_workers = before;
  std::int64_t count = wanted;
  if (automatic)
    count = std::clamp<std::int64_t>(autotuned.num_workers > 0 ? autotuned.num_workers : before, 1, num_workers_max());
  try {
    workers.resize(count, automatic ? Joining::later : Joining::now);
  } catch (...) {
    // Without workers the consumer loads, which it may do only when none of them holds a chunk any more.
    workers.resize(before, before == 0 ? Joining::now : Joining::later);
    if (before == 0) load_requested();
    throw;
  }
  {
    std::lock_guard lock(mutex);
    threads_wanted = wanted;
  }
  restart_tuning();
  if (count == 0) load_requested();
}

// What tuning has found and what it has under trial go on. After an error there are as many as could be had.
void Loader::Impl::renew_workers() {
  std::lock_guard resize_lock(resizing);
  const std::int64_t count = workers.count();
  workers.resize(0, Joining::now);
  try {
    workers.resize(count, Joining::later);
  } catch (...) {
    if (workers.count() == 0) load_requested();
    throw;
  }
}

void Loader::Impl::set_prefetch_batches(std::int64_t wanted) {
  std::lock_guard resize_lock(resizing);
  const bool was_automatic = prefetch_wanted == AUTOTUNE, automatic = wanted == AUTOTUNE;
  if (automatic && was_automatic) return;
  if (was_automatic) autotuned.prefetch = prefetch;
  if (automatic) wanted = autotuned.prefetch > 0 ? autotuned.prefetch : prefetch;
  deepen(std::min(wanted, prefetch_max(automatic ? AUTOTUNE : wanted, bytes_a_batch())));
  {
    std::lock_guard lock(mutex);
    prefetch_wanted = automatic ? AUTOTUNE : wanted;
  }
  restart_tuning();
}

// `resizing` is held.
std::int64_t Loader::Impl::usable_cores() {
  if (cores == 0) cores = detect_machine().cores_usable;
  return cores;
}

// `resizing` is held.
std::int64_t Loader::Impl::num_workers_max() {
  return options.num_workers_max > 0 ? options.num_workers_max : std::max(kThreadsOfAuto, 2 * usable_cores());
}

// `resizing` is held.
detail::SettingBounds Loader::Impl::tuning_bounds() {
  detail::SettingBounds bounds{.low = {workers.count(), prefetch},
                               .high = {workers.count(), prefetch},
                               .batches = batches,
                               .batch_size = options.batch_size,
                               .cores = 1};
  if (!is_automatic()) return bounds;
  bounds.cores = static_cast<double>(usable_cores());
  if (threads_wanted == AUTOTUNE) {
    bounds.low.num_workers = 1;
    bounds.high.num_workers = num_workers_max();
  }
  if (prefetch_wanted == AUTOTUNE) {
    bounds.low.prefetch = 1;
    bounds.high.prefetch = prefetch_max(AUTOTUNE, bytes_a_batch());
  }
  return bounds;
}

// `resizing` is held.
void Loader::Impl::restart_tuning() {
  const detail::SettingBounds bounds = tuning_bounds();
  std::lock_guard lock(mutex);
  tuner.reset(bounds, {workers.count(), prefetch, cache.in_force()});
  meter.restart(prefetch + kConsumerBatches);
}

// The consumer's call, between two batches.
void Loader::Impl::retune() {
  std::lock_guard resize_lock(resizing);
  LoaderSetting before, wanted;
  {
    std::lock_guard lock(mutex);
    auto rates = meter.rates(options.batch_size);
    if (!is_automatic() || !rates) return;  // Somebody else was here.
    if (cache_requested == Cache::automatic) rates->fit = cache.fit(counters.done());
    before = tuner.now();
    wanted = tuner.step(*rates, counters.batches(), seconds_since(built_ns)).value_or(before);
    // What the setting before has made must be gone first. A cache is full after the rest of this epoch and a whole
    // one.
    const bool fills = wanted.cache != before.cache && wanted.cache != Cache::none;
    const std::int64_t settling = before.prefetch + kConsumerBatches;
    meter.restart(wanted == before ? 0 : fills ? std::max(2 * batches, settling) : settling);
  }
  if (wanted == before) return;
  put_in_force(wanted);
  record_gauge(kThreads, workers.count());
  record_gauge(kPrefetch, prefetch);
  record_gauge(kCacheHolds, static_cast<std::int64_t>(cache.in_force()));
}

// `resizing` is held. The batch is delivered already: what cannot be had is noted and left out.
void Loader::Impl::put_in_force(const detail::LoaderSetting& wanted) {
  const auto attempt = [this](const char* what, const auto& in_force, const auto& change) {
    try {
      change();
    } catch (const std::exception& refused) {
      std::lock_guard lock(mutex);
      tuner.refuse(what, static_cast<std::int64_t>(in_force()), refused.what());
    }
  };
  if (wanted.prefetch != prefetch) {
    attempt(
        detail::kPrefetchKey, [this] { return prefetch; }, [&] { deepen(wanted.prefetch); });
  }
  if (wanted.num_workers != workers.count()) {
    attempt(
        detail::kNumWorkersKey, [this] { return workers.count(); },
        [&] { workers.resize(wanted.num_workers, Joining::later); });
  }
  if (wanted.cache != cache.in_force()) {
    attempt(
        detail::kCacheKey, [this] { return cache.in_force(); },
        [&] {
          cache.place(wanted.cache, /*keep=*/false);
          if (cache.in_force() != wanted.cache) fail(ErrorCode::out_of_memory, "data: {}", cache.refusal());
        });
  }
}

std::vector<LoaderDecision> Loader::Impl::decisions() const {
  std::lock_guard lock(mutex);
  return tuner.decisions();
}

// The lock is held.
std::string Loader::Impl::last_reason(const char* what) const {
  const auto& all = tuner.decisions();
  const auto last = std::find_if(all.rbegin(), all.rend(), [what](const auto& made) { return made.what == what; });
  return last == all.rend() ? "as it began; nothing measured asks for another" : last->why;
}

Applied Loader::Impl::applied_num_workers() const {
  std::lock_guard lock(mutex);
  const bool automatic = threads_wanted == AUTOTUNE;
  return {detail::kNumWorkersKey, number_text(threads_wanted), std::to_string(workers.count()),
          automatic ? last_reason(detail::kNumWorkersKey) : ""};
}

Applied Loader::Impl::applied_prefetch() const {
  std::lock_guard lock(mutex);
  std::string reason;
  if (prefetch_wanted == AUTOTUNE) {
    reason = last_reason(detail::kPrefetchKey);
  } else if (prefetch < prefetch_wanted) {
    reason =
        fmt::format("data.prefetch_mib = {} holds no more batches of {} bytes", options.prefetch_mib, bytes_a_batch());
  }
  return {detail::kPrefetchKey, number_text(prefetch_wanted), std::to_string(prefetch), std::move(reason)};
}

std::string LoaderDecision::text_of(std::int64_t value) const {
  if (what != detail::kCacheKey) return std::to_string(value);
  for (const auto& [form, name] : choices(Cache{})) {
    if (static_cast<std::int64_t>(form) == value) return std::string(name);
  }
  return "unknown";
}

}  // namespace headrace
