// How many workers and batches ahead are enough, and which cache: proposed by a model of the loader from
// measured rates, judged by what the consumer then gets, taken back when it does not pay. No clock and no thread:
// values in, values out.
//
// The model: a batch takes the workers `service_s` together, so n of them make n / service_s batches a second, but no
// more than the cores allow: cores / (service_s * cpu_share). The consumer takes 1 / consumer_busy_s. It gets the
// smaller of both. A cache takes its part of reading, or of reading and decoding, out of service_s.
#pragma once

#include <headrace/loader.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/loader/detail/rate_meter.h"

namespace headrace::detail {

inline constexpr const char* kNumWorkersKey = "data.num_workers";
inline constexpr const char* kPrefetchKey = "data.prefetch_batches";
inline constexpr const char* kCacheKey = "data.cache";

struct LoaderSetting {
  std::int64_t num_workers = 1;
  std::int64_t prefetch = 1;
  Cache cache = Cache::none;  // What is kept: one of the fixed forms.
  friend bool operator==(const LoaderSetting&, const LoaderSetting&) = default;
};

struct SettingBounds {
  LoaderSetting low, high;   // The same where a setting is fixed; of the cache, rates.fit says what may be chosen.
  std::int64_t batches = 0;  // Of an epoch.
  std::int64_t batch_size = 1;
  double cores = 1;
};

struct Proposal {
  enum class Kind { more_threads, fewer_threads, deeper, other_cache };
  static constexpr std::size_t kKinds = 4;
  Kind kind;
  LoaderSetting to;
  double cycle_s;  // Of a batch, as the model predicts it.
  std::string why;
};

// The fewest threads, and then the depth, that give the consumer what it can take or the machine can make, within 2 %.
// Where that is not had, the cache that is predicted to give most. Kinds that are `paused` are passed over. nullopt:
// what there is will do.
std::optional<Proposal> propose(const LoaderRates& rates, const LoaderSetting& now, const SettingBounds& bounds,
                                const std::array<bool, Proposal::kKinds>& paused = {});

// The work of a batch once another cache is full.
LoaderRates with_cache(LoaderRates rates, Cache cache);

class Autotuner {
 public:
  Autotuner(const SettingBounds& bounds, const LoaderSetting& now) : bounds_(bounds), now_(now) {}

  // Somebody else changed what may be chosen, or what is in force. A change under trial is not judged any more; what
  // did not pay before still rests.
  void reset(const SettingBounds& bounds, const LoaderSetting& now);
  // After an interval at now(), which delivery number `batch` ended `at_s` after the loader was built: the setting to
  // take from here on, if another one. The caller measures anew then.
  std::optional<LoaderSetting> step(const LoaderRates& rates, std::int64_t batch, double at_s);
  // Of the last decision about `what`, a key, only `in_force` could be had, for the reason `why`: no more is tried.
  void refuse(std::string_view what, std::int64_t in_force, const std::string& why);

  const LoaderSetting& now() const { return now_; }
  const std::vector<LoaderDecision>& decisions() const { return decisions_; }  // The newest 1,000.

 private:
  // What is under trial since the last decision.
  struct Trial {
    Proposal::Kind kind;
    LoaderSetting from;
    LoaderRates before;
    double predicted_s;
    std::size_t entries;  // Of the log, its last.
  };
  // A kind of change that did not pay is not proposed again for a while, unless costs change.
  struct Pause {
    std::int64_t until = 0;   // A delivery.
    std::int64_t length = 0;  // Of the last one, in deliveries; doubles each time.
    LoaderRates costs;
  };

  std::optional<LoaderSetting> judge(const LoaderRates& rates, std::int64_t batch, double at_s);
  static bool is_paused(const Pause& pause, const LoaderRates& rates, std::int64_t batch);
  std::size_t note(const LoaderSetting& to, const std::string& why, const LoaderRates& rates, std::int64_t batch,
                   double at_s);
  double samples_per_second(const LoaderRates& rates) const;

  SettingBounds bounds_;
  LoaderSetting now_;
  std::optional<Trial> trial_;
  std::array<Pause, Proposal::kKinds> pauses_;  // By kind.
  std::int64_t fewer_proposed_ = 0;             // Times in succession.
  bool cache_refused_ = false;
  std::vector<LoaderDecision> decisions_;
};

}  // namespace headrace::detail
