#include "data/loader/detail/cache_placement.h"

#include <algorithm>
#include <utility>

#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "data/transform/image_maker.h"

namespace headrace::detail {

// Why there is nothing of this source for such a cache to keep; empty: there is.
std::string CachePlacement::refusal_of(Cache form) const {
  const SampleFields& fields = samples_.fields;
  if (form == Cache::none) return "";
  if (samples_.source.info().in_memory) {
    return fields.image ? "the source's images are pixels in memory already"
                        : "the source's samples are in memory already";
  }
  if (!fields.image) return "";
  const bool gives_pixels = fields.stored.height > 0 || samples_.source.can().rows != nullptr;
  return form == Cache::encoded && gives_pixels ? "the source gives pixels, no files" : "";
}

bool CachePlacement::holds(Cache form) const {
  const auto is_it = [form](const auto& held) { return held != nullptr && held->form == form; };
  return is_it(cache_) || is_it(kept_);
}

void CachePlacement::place(Cache form, bool keep) {
  std::shared_ptr<SampleCache> next;
  std::string refusal = refusal_of(form);
  if (refusal.empty() && form != Cache::none) {
    {
      std::lock_guard lock(mutex_);
      if (in_force() == form) return refusal_.clear();
      if (kept_ != nullptr && kept_->form == form) next = std::move(kept_);
    }
    if (next == nullptr) {
      next = make(form, keep);
      if (!next->entries.has_room(1)) {
        refusal = fmt::format("nothing is left for it of the memory limit of {} bytes", memory_limit_);
      }
    }
  }
  if (refusal.empty()) exchange(std::move(next), keep);
  std::lock_guard lock(mutex_);
  refusal_ = std::move(refusal);
}

void CachePlacement::exchange(std::shared_ptr<SampleCache> other, bool keep) {
  std::shared_ptr<SampleCache> unwanted;
  std::lock_guard lock(mutex_);
  cache_.swap(other);
  if (keep && other != nullptr) kept_.swap(other);
  if (!keep) unwanted = std::move(kept_);
  // What is in no hand any more is freed after the lock, by the last worker that reads it or here.
}

std::shared_ptr<SampleCache> CachePlacement::make(Cache form, bool keep) const {
  const std::int64_t samples = samples_.source.size();
  const std::int64_t of_images = form == Cache::decoded ? ImageMaker::cache_keys(samples_.options, samples) : samples;
  std::unique_lock lock(mutex_);
  const std::int64_t most = bytes_max(keep);
  lock.unlock();
  return std::make_shared<SampleCache>(form, samples_.fields.image ? of_images : 0, samples_.have_rest ? samples : 0,
                                       most);
}

CacheFit CachePlacement::fit(const SampleTotals& done) const {
  constexpr double kEntryBytes = 64;  // Its head, its place in the table, and what its alignment leaves unused.
  if (samples_.source.info().in_memory) return {};
  const std::int64_t left = bytes_left(/*keep=*/false), wanted = samples_.options.cache_mib << 20;
  const auto bytes = static_cast<double>(wanted == 0 ? left / 2 : wanted > left ? 0 : wanted);
  const auto part = [&](std::int64_t taken, std::int64_t samples) {
    if (samples == 0) return 0.0;
    const double mean = static_cast<double>(taken) / static_cast<double>(samples) + kEntryBytes;
    // Of several ranks each gets other samples in the next epoch.
    return std::min(bytes / (mean * static_cast<double>(samples_.source.size())), 1.0) /
           static_cast<double>(samples_.options.world_size);
  };
  const auto &read = done.of(SamplePass::read), &rows = done.of(SamplePass::read_rows);
  const std::int64_t decoded = done.decoded().samples;
  if (decoded == 0) return {.decoded = part(read.in + rows.in + done.unread, read.samples + rows.samples)};
  return {.decoded = part(done.whole, decoded), .encoded = part(read.in, read.samples)};
}

std::int64_t CachePlacement::bytes_replaced(bool keep) const {
  const auto bound = [](const std::shared_ptr<SampleCache>& held) {
    return held == nullptr ? 0 : held->entries.bytes_max();
  };
  if (!keep) return bound(cache_) + bound(kept_);
  return cache_ == nullptr ? 0 : bound(kept_);  // One is kept: that in force, if any.
}

std::int64_t CachePlacement::bytes_left(bool keep) const {
  const std::int64_t taken = resident_memory().value_or(0) + RamCache::promised_bytes() - bytes_replaced(keep);
  return std::max<std::int64_t>(memory_limit_ - taken, 0);
}

std::int64_t CachePlacement::bytes_max(bool keep) const {
  const std::int64_t left = bytes_left(keep), wanted = samples_.options.cache_mib << 20;
  if (wanted == 0) return left / 2;
  if (wanted > left) {
    fail(ErrorCode::out_of_memory,
         "data: data.cache_mib asks for {} bytes; {} are left of the memory limit of {} bytes", wanted, left,
         memory_limit_);
  }
  return wanted;
}

std::int64_t CachePlacement::bytes() const {
  const auto held_by = [](const std::shared_ptr<SampleCache>& held) {
    return held == nullptr ? 0 : held->entries.bytes();
  };
  return held_by(cache_) + held_by(kept_);
}

}  // namespace headrace::detail
