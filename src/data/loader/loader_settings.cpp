// What changes of a loader while it runs: threads, depth and cache, because somebody asks for it or AUTOTUNE does, and
// what is told of them.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "data/loader/detail/loader_impl.h"

namespace headrace {
namespace {

using detail::kConsumerBatches;
using detail::LoaderSetting;
using Joining = detail::WorkerPool::Joining;

constexpr std::int64_t kPrefetchMax = 64;  // As data.prefetch_batches has it.
constexpr std::int64_t kShareOfAuto = 4;   // Of the memory limit: what a depth that nobody chose may take.

std::string number_text(std::int64_t wanted) {
  return wanted == AUTOTUNE ? "auto" : std::to_string(wanted);
}

}  // namespace

detail::LoaderTuning::Settables Loader::Impl::settables() {
  const auto place = [this](std::int64_t form) {
    const auto wanted = static_cast<Cache>(form);
    cache.place(wanted, /*keep=*/false);
    if (cache.in_force() != wanted) fail(ErrorCode::out_of_memory, "data: {}", cache.refusal());
  };
  return {.num_workers = {[this] { return workers.count(); },
                          [this](std::int64_t count) { workers.resize(count, Joining::later); }},
          .prefetch = {[this] { return window.depth(); }, [this](std::int64_t depth) { deepen(depth); }},
          .cache = {[this] { return static_cast<std::int64_t>(cache.in_force()); }, place}};
}

// `resizing` is held.
void Loader::Impl::ask_for(const LoaderSetting& wanted) {
  tuning.ask_for(wanted, prefetch_max(AUTOTUNE, bytes_a_batch()));
}

// The consumer's call, between two batches.
void Loader::Impl::retune() {
  std::lock_guard resize_lock(resizing);
  std::optional<LoaderSetting> next;
  {
    std::lock_guard lock(mutex);
    if (!tuning.is_due()) return;  // Somebody else was here.
    const bool chooses_cache = tuning.wanted().cache == Cache::automatic;
    next = tuning.decide(chooses_cache ? cache.fit(counters.done()) : detail::CacheFit{}, counters.batches(),
                         seconds_since(built_ns));
  }
  if (next) tuning.put_in_force(*next);
}

// ---- Threads ----

void Loader::Impl::set_num_workers(std::int64_t wanted) {
  std::lock_guard resize_lock(resizing);
  const std::int64_t before = workers.count();
  const auto count = tuning.num_workers_for(wanted);
  if (!count) return;
  try {
    workers.resize(*count, wanted == AUTOTUNE ? Joining::later : Joining::now);
  } catch (...) {
    // Without workers the consumer loads, which it may do only when none of them holds a chunk any more.
    workers.resize(before, before == 0 ? Joining::now : Joining::later);
    if (before == 0) load_requested();
    throw;
  }
  LoaderSetting asked = tuning.wanted();
  asked.num_workers = wanted;
  ask_for(asked);
  if (*count == 0) load_requested();
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

Applied Loader::Impl::applied_num_workers() const {
  std::lock_guard lock(mutex);
  const std::int64_t wanted = tuning.wanted().num_workers;
  return {detail::kNumWorkersKey, number_text(wanted), std::to_string(workers.count()),
          wanted == AUTOTUNE ? tuning.last_reason(detail::kNumWorkersKey) : ""};
}

// ---- Depth ----

// `resizing` is held. An error changes nothing.
void Loader::Impl::deepen(std::int64_t count) {
  {
    std::lock_guard lock(mutex);
    window.reserve(count);
  }
  slots->set_kept(count + kConsumerBatches);
  {
    std::lock_guard lock(mutex);
    window.set_depth(count);
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

void Loader::Impl::set_prefetch_batches(std::int64_t wanted) {
  std::lock_guard resize_lock(resizing);
  const auto depth = tuning.prefetch_for(wanted);
  if (!depth) return;
  deepen(std::min(*depth, prefetch_max(wanted, bytes_a_batch())));
  LoaderSetting asked = tuning.wanted();
  asked.prefetch = wanted;
  ask_for(asked);
}

Applied Loader::Impl::applied_prefetch() const {
  std::lock_guard lock(mutex);
  const std::int64_t wanted = tuning.wanted().prefetch;
  std::string reason;
  if (wanted == AUTOTUNE) {
    reason = tuning.last_reason(detail::kPrefetchKey);
  } else if (window.depth() < wanted) {
    reason =
        fmt::format("data.prefetch_mib = {} holds no more batches of {} bytes", options.prefetch_mib, bytes_a_batch());
  }
  return {detail::kPrefetchKey, number_text(wanted), std::to_string(window.depth()), std::move(reason)};
}

// ---- Cache ----

void Loader::Impl::set_cache(Cache wanted, bool keep) {
  if (is_open && wanted != Cache::none) {
    fail(ErrorCode::invalid_argument,
         "data: data.cache is \"{}\", and the source does not tell how many samples it has; wanted \"none\"",
         choice_name(wanted));
  }
  std::lock_guard resize_lock(resizing);
  const auto form = tuning.cache_for(wanted);
  if (!form) return;
  const bool automatic = wanted == Cache::automatic;
  if (automatic && !cache.holds(*form)) {
    // Whether data.cache_mib can be had is told now, not in the middle of an epoch. What is placed then keeps no other.
    std::lock_guard lock(mutex);
    static_cast<void>(cache.bytes_max(/*keep=*/false));
  }
  cache.place(*form, keep);
  if (!automatic && cache.in_force() != wanted) cache.remove(keep);  // It was asked for by name.
  LoaderSetting asked = tuning.wanted();
  asked.cache = wanted;
  ask_for(asked);
}

Applied Loader::Impl::applied_cache() const {
  std::lock_guard lock(mutex);
  const Cache wanted = tuning.wanted().cache;
  const bool is_chosen = wanted == Cache::automatic && (cache.cache() != nullptr || cache.refusal().empty());
  std::string reason = is_chosen ? tuning.last_reason(detail::kCacheKey) : cache.refusal();
  return {detail::kCacheKey, std::string(choice_name(wanted)), std::string(choice_name(cache.in_force())),
          std::move(reason)};
}

}  // namespace headrace
