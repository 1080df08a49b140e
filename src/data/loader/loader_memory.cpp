// What a loader holds in memory: the pool of batches and the cache, how large they may be, and what they hold now.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/fail.h"
#include "data/loader/detail/loader_impl.h"

namespace headrace {

namespace {

using detail::kConsumerBatches;

constexpr std::int64_t kPrefetchMax = 64;  // As data.prefetch_batches has it.
constexpr std::int64_t kShareOfAuto = 4;   // Of the memory limit: what a depth that nobody chose may take.

}  // namespace

// `resizing` is held. An error changes nothing.
void Loader::Impl::deepen(std::int64_t count) {
  {
    std::lock_guard lock(mutex);
    window.reserve(count);
  }
  slots->set_kept(count + kConsumerBatches);
  {
    std::lock_guard lock(mutex);
    prefetch = count;
  }
  room.notify_all();
}

// Batches that may be prepared ahead where `wanted` is asked for: a number, or AUTOTUNE.
std::int64_t Loader::Impl::prefetch_max(std::int64_t wanted, std::int64_t bytes_a_batch) const {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  if (wanted == AUTOTUNE) bytes = memory_limit / kShareOfAuto;
  if (options.prefetch_mib > 0) bytes = std::min(bytes, options.prefetch_mib << 20);
  return std::clamp<std::int64_t>(bytes / bytes_a_batch, 1, kPrefetchMax);
}

std::int64_t Loader::Impl::first_prefetch() const {
  const std::int64_t wanted = options.prefetch_batches;
  return std::min(wanted == AUTOTUNE ? DataOptions{}.prefetch_batches : wanted, prefetch_max(wanted, batch_bytes));
}

void Loader::Impl::set_cache(Cache wanted, bool keep) {
  std::lock_guard resize_lock(resizing);
  const bool was_automatic = cache_requested == Cache::automatic, automatic = wanted == Cache::automatic;
  if (automatic && was_automatic) return;
  if (was_automatic) autotuned.cache = cache.in_force();
  if (automatic && !cache.holds(autotuned.cache)) {
    // Whether data.cache_mib can be had is told now, not in the middle of an epoch. What is placed then keeps no other.
    std::lock_guard lock(mutex);
    static_cast<void>(cache.bytes_max(/*keep=*/false));
  }
  cache.place(automatic ? autotuned.cache : wanted, keep);
  if (!automatic && cache.in_force() != wanted) cache.remove(keep);  // It was asked for by name.
  {
    std::lock_guard lock(mutex);
    cache_requested = wanted;
  }
  restart_tuning();
}

Applied Loader::Impl::applied_cache() const {
  std::lock_guard lock(mutex);
  const bool automatic = cache_requested == Cache::automatic;
  const bool is_chosen = automatic && (cache.cache() != nullptr || cache.refusal().empty());
  std::string reason = is_chosen ? last_reason(detail::kCacheKey) : cache.refusal();
  return {"data.cache", std::string(choice_name(cache_requested)), std::string(choice_name(cache.in_force())),
          std::move(reason)};
}

std::int64_t Loader::Impl::held_bytes() const {
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (lock) held_told = slots->allocated_bytes() + counters.workspace_bytes();
  return held_told;
}

}  // namespace headrace
