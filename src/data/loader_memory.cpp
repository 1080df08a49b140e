// What a loader holds in memory: the pool of batches and the cache, how large they may be, and what they hold now.
#include <headrace/error.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "data/detail/loader_impl.h"
#include "data/detail/picture.h"
#include "hardware/machine.h"

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
    window.reserve(static_cast<std::size_t>(count));
  }
  slots->set_kept(count + kConsumerBatches);
  {
    std::lock_guard lock(mutex);
    prefetch = count;
  }
  room.notify_all();
}

// Batches that may be prepared ahead where `wanted` is asked for: a number, or AUTOTUNE.
std::int64_t Loader::Impl::prefetch_max(std::int64_t wanted) const {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  if (wanted == AUTOTUNE) bytes = memory_limit / kShareOfAuto;
  if (options.prefetch_mib > 0) bytes = std::min(bytes, options.prefetch_mib << 20);
  return std::clamp<std::int64_t>(bytes / batch_bytes, 1, kPrefetchMax);
}

std::int64_t Loader::Impl::first_prefetch() const {
  const std::int64_t wanted = options.prefetch_batches;
  return std::min(wanted == AUTOTUNE ? DataOptions{}.prefetch_batches : wanted, prefetch_max(wanted));
}

void Loader::Impl::set_cache(Cache wanted, bool keep) {
  std::lock_guard resize_lock(resizing);
  const bool was_automatic = cache_requested == Cache::automatic, automatic = wanted == Cache::automatic;
  if (automatic && was_automatic) return;
  if (automatic)
    static_cast<void>(
        cache_bytes_max());  // Whether data.cache_mib can be had is told now, not in the middle of an epoch.
  if (was_automatic) autotuned.cache = cache_in_force();
  place_cache(automatic ? autotuned.cache : wanted, keep);
  {
    std::lock_guard lock(mutex);
    cache_requested = wanted;
  }
  restart_tuning();
}

// `resizing` is held.
void Loader::Impl::place_cache(Cache form, bool keep) {
  std::shared_ptr<detail::SampleCache> other, unwanted;
  std::string refusal;
  const bool wanted = form != Cache::none;
  if (wanted && source->in_memory()) {
    refusal = "the source's pictures are pixels in memory already";
  } else if (wanted) {
    {
      std::lock_guard lock(mutex);
      if (cache != nullptr && cache->form == form) return;
      if (kept_cache != nullptr && kept_cache->form == form) other = std::move(kept_cache);
    }
    if (other == nullptr) {
      other = make_cache(form);
      if (!other->entries.has_room(1)) {
        refusal = fmt::format("nothing is left for it of the memory limit of {} bytes", memory_limit);
        other = nullptr;
      }
    }
  }
  std::lock_guard lock(mutex);
  cache_refusal = std::move(refusal);
  cache.swap(other);
  if (keep && other != nullptr) kept_cache.swap(other);
  if (!keep) unwanted = std::move(kept_cache);
  // What is in no hand any more is freed after the lock, by the last worker that reads it or here.
}

std::shared_ptr<detail::SampleCache> Loader::Impl::make_cache(Cache form) const {
  const std::int64_t samples = source->size();
  const std::int64_t keys = form == Cache::decoded ? detail::PictureMaker::cache_keys(options, samples) : samples;
  return std::make_shared<detail::SampleCache>(form, keys, cache_bytes_max());
}

// What the cache would hold of the data set, by the mean sizes of what has passed so far. The lock is held.
detail::CacheFit Loader::Impl::cache_fit() const {
  constexpr double kEntryBytes = 64;  // Its head, its place in the table, and what its alignment leaves unused.
  if (source->in_memory()) return {};
  const std::int64_t left = cache_bytes_left(), wanted = options.cache_mib << 20;
  const auto bytes = static_cast<double>(wanted == 0 ? left / 2 : wanted > left ? 0 : wanted);
  const auto fit = [&](std::int64_t taken, std::int64_t samples) {
    if (samples == 0) return 0.0;
    const double mean = static_cast<double>(taken) / static_cast<double>(samples) + kEntryBytes;
    // Of several ranks each gets other samples in the next epoch.
    return std::min(bytes / (mean * static_cast<double>(source->size())), 1.0) / static_cast<double>(options.ranks);
  };
  using detail::SamplePass;
  const auto &read = done.of(SamplePass::read), &rows = done.of(SamplePass::read_rows);
  const std::int64_t decoded = done.decoded().samples;
  if (decoded == 0) return {.decoded = fit(read.in + rows.in + done.unread, read.samples + rows.samples)};
  return {.decoded = fit(done.whole, decoded), .encoded = fit(read.in, read.samples)};
}

// What the process holds now counts, and what other caches may still grow by.
std::int64_t Loader::Impl::cache_bytes_left() const {
  return std::max<std::int64_t>(memory_limit - resident_memory().value_or(0) - RamCache::promised_bytes(), 0);
}

std::int64_t Loader::Impl::cache_bytes_max() const {
  const std::int64_t left = cache_bytes_left(), wanted = options.cache_mib << 20;
  if (wanted == 0) return left / 2;
  if (wanted > left) {
    fail(ErrorCode::out_of_memory,
         "data: data.cache_mib asks for {} bytes; {} are left of the memory limit of {} bytes", wanted, left,
         memory_limit);
  }
  return wanted;
}

Applied Loader::Impl::applied_cache() const {
  std::lock_guard lock(mutex);
  const bool automatic = cache_requested == Cache::automatic;
  std::string reason = automatic && cache_refusal.empty() ? last_reason(detail::kCacheKey) : cache_refusal;
  return {"data.cache", std::string(word_of(cache_requested)), std::string(word_of(cache_in_force())),
          std::move(reason)};
}

// The lock is held.
std::int64_t Loader::Impl::cache_bytes() const {
  const auto bytes = [](const std::shared_ptr<detail::SampleCache>& held) {
    return held == nullptr ? 0 : held->entries.bytes();
  };
  return bytes(cache) + bytes(kept_cache);
}

std::int64_t Loader::Impl::held_bytes() const {
  std::lock_guard lock(mutex);
  return slots->allocated_bytes() + totals.workspace_bytes;
}

}  // namespace headrace
