// What is asked for of threads, depth and cache, and where that is AUTOTUNE what is measured, proposed and taken back.
// It changes with the loader's `resizing` held; what the consumer measures and asks is guarded by `mutex`.
#pragma once

#include <headrace/loader_statistics.h>
#include <headrace/options/data.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/loader/detail/autotune.h"
#include "data/loader/detail/rate_meter.h"

namespace headrace::detail {

class LoaderTuning {
 public:
  // What is in force of the loader, as numbers; of the cache those of Cache.
  struct Settable {
    std::function<std::int64_t()> in_force;  // Takes no lock.
    std::function<void(std::int64_t)> set;   // `mutex` is not held. Throws where it cannot be had.
  };
  struct Settables {
    Settable num_workers, prefetch, cache;
  };

  // `batches`: of an epoch.
  LoaderTuning(const DataOptions& options, std::int64_t batches, Settables settables, std::mutex& mutex)
      : batches_(batches),
        batch_size_(options.batch_size),
        num_workers_max_(options.num_workers_max),
        may_decide_(options.auto_tune),
        settables_(std::move(settables)),
        mutex_(mutex),
        wanted_{options.num_workers, options.prefetch_batches, Cache::none} {}

  // ---- `resizing` is held ----
  // What to put in force where a number or AUTOTUNE is asked for: AUTOTUNE goes on from what it had found when a number
  // took its place. nullopt: it is asked for already and goes on with what it has found.
  std::optional<std::int64_t> num_workers_for(std::int64_t wanted);
  std::optional<std::int64_t> prefetch_for(std::int64_t wanted);
  std::optional<Cache> cache_for(Cache wanted);
  // That is in force. `prefetch_max`: where the depth is AUTOTUNE.
  void ask_for(const LoaderSetting& wanted, std::int64_t prefetch_max);
  // The batch is delivered already: what cannot be had is noted and left out.
  void put_in_force(const LoaderSetting& next);

  // ---- `mutex` is held, for wanted() and is_automatic() either lock ----
  const LoaderSetting& wanted() const noexcept { return wanted_; }  // Numbers, AUTOTUNE and Cache::automatic.
  bool is_automatic() const noexcept {
    const bool asks =
        wanted_.num_workers == AUTOTUNE || wanted_.prefetch == AUTOTUNE || wanted_.cache == Cache::automatic;
    return may_decide_ && asks;
  }
  void pause() noexcept { meter_.pause(); }  // As RateMeter's.
  void measure(std::int64_t asked_ns, std::int64_t delivered_ns, const WorkerTotals& totals) noexcept {
    meter_.add(asked_ns, delivered_ns, totals);
  }
  // Enough has been measured for the next decision.
  bool is_due() const noexcept { return is_automatic() && meter_.rates(batch_size_).has_value(); }
  // Which is due, after `deliveries` and `at_s` since the loader was built: what to put in force, if something else.
  std::optional<LoaderSetting> decide(const CacheFit& fit, std::int64_t deliveries, double at_s);
  const std::vector<LoaderDecision>& decisions() const noexcept { return tuner_.decisions(); }
  std::string last_reason(const char* key) const;

 private:
  LoaderSetting in_force() const;
  SettingBounds bounds(std::int64_t prefetch_max);
  std::int64_t usable_cores();
  std::int64_t num_workers_max();

  const std::int64_t batches_, batch_size_, num_workers_max_;
  const bool may_decide_;
  const Settables settables_;
  std::mutex& mutex_;
  LoaderSetting wanted_;
  RateMeter meter_;
  Autotuner tuner_{{}, {}};
  LoaderSetting found_{0, 0};  // What AUTOTUNE had in force when a number took its place; 0: nothing yet.
  std::int64_t cores_ = 0;     // That the process may use; 0: not asked yet.
};

}  // namespace headrace::detail
