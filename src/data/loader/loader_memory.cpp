// What a loader holds in memory: the pool of batches and the cache, how large they may be, and what they hold now.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "data/loader/detail/loader_impl.h"
#include "data/transform/image_maker.h"

namespace headrace {

namespace {

using detail::kConsumerBatches;

constexpr std::int64_t kPrefetchMax = 64;  // As data.prefetch_batches has it.
constexpr std::int64_t kShareOfAuto = 4;   // Of the memory limit: what a depth that nobody chose may take.

// Why there is nothing of this source for such a cache to keep; empty: there is.
std::string refusal_by(const SampleReader& source, const detail::SampleFields& fields, Cache form) {
  if (form == Cache::none) return "";
  if (source.info().in_memory) {
    return fields.image ? "the source's images are pixels in memory already"
                        : "the source's samples are in memory already";
  }
  if (!fields.image) return "";
  const bool gives_pixels = fields.stored.height > 0 || source.can().rows != nullptr;
  return form == Cache::encoded && gives_pixels ? "the source gives pixels, no files" : "";
}

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
  if (was_automatic) autotuned.cache = cache_in_force();
  if (automatic && !holds_cache(autotuned.cache)) {
    // Whether data.cache_mib can be had is told now, not in the middle of an epoch. What is placed then keeps no other.
    std::lock_guard lock(mutex);
    static_cast<void>(cache_bytes_max(/*keep=*/false));
  }
  place_cache(automatic ? autotuned.cache : wanted, keep);
  if (!automatic && cache_in_force() != wanted) exchange_cache(nullptr, keep);  // It was asked for by name.
  {
    std::lock_guard lock(mutex);
    cache_requested = wanted;
  }
  restart_tuning();
}

// `resizing` is held.
bool Loader::Impl::holds_cache(Cache form) const {
  const auto is_it = [form](const auto& held) { return held != nullptr && held->form == form; };
  return is_it(cache) || is_it(kept_cache);
}

// `resizing` is held. Where this form is refused, the cache stays as it is.
void Loader::Impl::place_cache(Cache form, bool keep) {
  std::shared_ptr<detail::SampleCache> next;
  std::string refusal = refusal_by(reader, fields, form);
  if (refusal.empty() && form != Cache::none) {
    {
      std::lock_guard lock(mutex);
      if (cache_in_force() == form) return cache_refusal.clear();
      if (kept_cache != nullptr && kept_cache->form == form) next = std::move(kept_cache);
    }
    if (next == nullptr) {
      next = make_cache(form, keep);
      if (!next->entries.has_room(1)) {
        refusal = fmt::format("nothing is left for it of the memory limit of {} bytes", memory_limit);
      }
    }
  }
  if (refusal.empty()) exchange_cache(std::move(next), keep);
  std::lock_guard lock(mutex);
  cache_refusal = std::move(refusal);
}

// `resizing` is held.
void Loader::Impl::exchange_cache(std::shared_ptr<detail::SampleCache> other, bool keep) {
  std::shared_ptr<detail::SampleCache> unwanted;
  std::lock_guard lock(mutex);
  cache.swap(other);
  if (keep && other != nullptr) kept_cache.swap(other);
  if (!keep) unwanted = std::move(kept_cache);
  // What is in no hand any more is freed after the lock, by the last worker that reads it or here.
}

// `resizing` is held.
std::shared_ptr<detail::SampleCache> Loader::Impl::make_cache(Cache form, bool keep) const {
  const std::int64_t samples = source->size();
  const std::int64_t of_images = form == Cache::decoded ? detail::ImageMaker::cache_keys(options, samples) : samples;
  std::unique_lock lock(mutex);
  const std::int64_t bytes_max = cache_bytes_max(keep);
  lock.unlock();
  return std::make_shared<detail::SampleCache>(form, fields.image ? of_images : 0, rest ? samples : 0, bytes_max);
}

// What the cache would hold of the data set, by the mean sizes of what has passed so far. The lock is held.
detail::CacheFit Loader::Impl::cache_fit() const {
  constexpr double kEntryBytes = 64;  // Its head, its place in the table, and what its alignment leaves unused.
  if (reader.info().in_memory) return {};
  const std::int64_t left = cache_bytes_left(/*keep=*/false), wanted = options.cache_mib << 20;
  const auto bytes = static_cast<double>(wanted == 0 ? left / 2 : wanted > left ? 0 : wanted);
  const auto fit = [&](std::int64_t taken, std::int64_t samples) {
    if (samples == 0) return 0.0;
    const double mean = static_cast<double>(taken) / static_cast<double>(samples) + kEntryBytes;
    // Of several ranks each gets other samples in the next epoch.
    return std::min(bytes / (mean * static_cast<double>(source->size())), 1.0) /
           static_cast<double>(options.world_size);
  };
  using detail::SamplePass;
  const detail::SampleTotals& done = counters.done();
  const auto &read = done.of(SamplePass::read), &rows = done.of(SamplePass::read_rows);
  const std::int64_t decoded = done.decoded().samples;
  if (decoded == 0) return {.decoded = fit(read.in + rows.in + done.unread, read.samples + rows.samples)};
  return {.decoded = fit(done.whole, decoded), .encoded = fit(read.in, read.samples)};
}

// What a new cache makes go: `keep` as set_cache() has it. Its memory and what it may still grow by are the new one's.
std::int64_t Loader::Impl::cache_bytes_replaced(bool keep) const {
  const auto bound = [](const std::shared_ptr<detail::SampleCache>& held) {
    return held == nullptr ? 0 : held->entries.bytes_max();
  };
  if (!keep) return bound(cache) + bound(kept_cache);
  return cache == nullptr ? 0 : bound(kept_cache);  // One is kept: that in force, if any.
}

// For a new one. What the process holds counts, and what other caches may still grow by. The lock is held.
std::int64_t Loader::Impl::cache_bytes_left(bool keep) const {
  const std::int64_t taken = resident_memory().value_or(0) + RamCache::promised_bytes() - cache_bytes_replaced(keep);
  return std::max<std::int64_t>(memory_limit - taken, 0);
}

// The lock is held.
std::int64_t Loader::Impl::cache_bytes_max(bool keep) const {
  const std::int64_t left = cache_bytes_left(keep), wanted = options.cache_mib << 20;
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
  const bool is_chosen = automatic && (cache != nullptr || cache_refusal.empty());
  std::string reason = is_chosen ? last_reason(detail::kCacheKey) : cache_refusal;
  return {"data.cache", std::string(choice_name(cache_requested)), std::string(choice_name(cache_in_force())),
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
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (lock) held_told = slots->allocated_bytes() + counters.workspace_bytes();
  return held_told;
}

}  // namespace headrace
