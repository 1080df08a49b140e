// Which cache of samples is in force, what it may hold, and why the form that was asked for last is not. It changes
// with the loader's `resizing` held; what its workers and its statistics read is guarded by `mutex`.
#pragma once

#include <headrace/options/data.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "data/loader/detail/rate_meter.h"
#include "data/loader/detail/sample_cache.h"
#include "data/loader/detail/sample_fields.h"
#include "data/source/sample_reader.h"
#include "data/transform/sample_passes.h"

namespace headrace::detail {

// `keep` in all of these: the cache that is in force until then stays as it is while it is off, and its memory with it;
// otherwise what a new one replaces is its memory.
class CachePlacement {
 public:
  // What is to be kept. Outlives this.
  struct Samples {
    const SampleReader& source;
    const SampleFields& fields;
    const DataOptions& options;
    bool have_rest;  // Fields beside the image are kept, too.
  };
  CachePlacement(const Samples& samples, std::int64_t memory_limit, std::mutex& mutex)
      : samples_(samples), memory_limit_(memory_limit), mutex_(mutex) {}

  // ---- `resizing` is held ----
  // Cache::none, too. Where this form is refused, the cache stays as it is, and refusal() says why.
  // Error{out_of_memory}: data.cache_mib is more than is left.
  void place(Cache form, bool keep);
  void remove(bool keep) { exchange(nullptr, keep); }
  bool holds(Cache form) const;  // In force, or kept.

  // ---- `mutex` is held; for in_force() and refusal() either lock ----
  // Null: none is in force. Owners: the loader, and each worker that fills a chunk with it.
  const std::shared_ptr<SampleCache>& cache() const noexcept { return cache_; }
  Cache in_force() const noexcept { return cache_ == nullptr ? Cache::none : cache_->form; }
  const std::string& refusal() const noexcept { return refusal_; }
  std::int64_t bytes() const;
  // What a new one may hold; Error as place().
  std::int64_t bytes_max(bool keep) const;
  // For a new one: the memory limit, less what the process holds and what other caches may still grow by.
  std::int64_t bytes_left(bool keep) const;
  // What a new one makes go: its memory and what it may still grow by are the new one's.
  std::int64_t bytes_replaced(bool keep) const;
  // What a cache would hold of the data set, by the mean sizes of what has passed so far.
  CacheFit fit(const SampleTotals& done) const;

 private:
  std::shared_ptr<SampleCache> make(Cache form, bool keep) const;
  void exchange(std::shared_ptr<SampleCache> other, bool keep);
  std::string refusal_of(Cache form) const;

  const Samples samples_;
  const std::int64_t memory_limit_;
  std::mutex& mutex_;
  std::shared_ptr<SampleCache> cache_;
  std::shared_ptr<SampleCache> kept_;  // Switched off, to be switched on again.
  std::string refusal_;
};

}  // namespace headrace::detail
