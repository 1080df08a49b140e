#include "app/cli/run_loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "app/cli/console.h"
#include "app/cli/json_places.h"
#include "core/exec/cores.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using json_places::at;
using json_places::number;
using json_places::text;

constexpr const char* kThreads = "data.num_workers";
constexpr double kThreadsMax = 4096;
constexpr double kWaits = 0.1;       // Of the loop's time: below, nothing is worth changing.
constexpr double kGainMin = 0.05;    // Of the rate: less is not proposed.
constexpr double kNearlyAll = 0.98;  // Of the best rate: as good as that.

struct Loading {
  LoadingInput input;
  double waits = 0;                 // Share of the loop's time.
  double idle = 0;                  // Share of the threads' time in which they neither work nor wait for room.
  std::optional<double> cpu_share;  // Of the time in which they work.
};

double of_stage(const Json& loading, const char* name, const char* figure) {
  for (const Json& stage : at(loading, {"stages"})) {
    if (text(at(stage, {"name"})) == name) return number(at(stage, {figure})).value_or(0);
  }
  return 0;
}

int usable_cores(const RunContents& run, const Machine& here) {
  const auto then = number(at(run.environment, {"machine", "cores_usable"}));
  return then && *then >= 1 && *then <= kThreadsMax ? static_cast<int>(*then) : std::max(1, here.cores_usable);
}

// nullopt: nothing was loaded, or nobody measured it.
std::optional<Loading> loading_of(const RunContents& run, const Machine& here) {
  const Json& figures = run.loading();
  const auto workers = number(at(figures, {"num_workers"}));
  const double samples = of_stage(figures, "transform", "records"), taken = of_stage(figures, "consume", "records");
  if (!workers || !(*workers >= 0 && *workers <= kThreadsMax) || !(samples > 0) || !(taken > 0)) return std::nullopt;
  Loading loading;
  LoadingInput& input = loading.input;
  input.costs.read_s = of_stage(figures, "read", "busy_s") / samples;
  input.costs.decode_s = of_stage(figures, "decode", "busy_s") / samples;
  input.costs.augment_s = of_stage(figures, "transform", "busy_s") / samples;
  input.consumer_busy_s = of_stage(figures, "consume", "busy_s") / taken;
  input.num_workers = static_cast<int>(*workers);
  input.cores = usable_cores(run, here);
  input.compute_threads =
      run.recipe ? split_cores(input.cores, run.recipe->compute.intra_op_threads, 1).compute : input.cores;
  loading.cpu_share = number(at(figures, {"cpu_share"}));
  input.cpu_share = std::clamp(loading.cpu_share.value_or(1), 0.0, 1.0);
  const double waited_s =
      input.num_workers == 0 ? input.costs.sample_s() : of_stage(figures, "consume", "wait_for_input_s") / taken;
  const double cycle_s = input.consumer_busy_s + waited_s;
  if (!(cycle_s > 0)) return std::nullopt;
  input.samples_per_second = 1 / cycle_s;
  loading.waits = waited_s / cycle_s;
  const double threads_s = input.num_workers * cycle_s * taken;
  if (threads_s > 0) {
    const double room_s = of_stage(figures, "read", "wait_for_output_s");
    loading.idle = std::max(0.0, 1 - (input.costs.sample_s() * samples + room_s) / threads_s);
  }
  return loading;
}

// What they wait for cannot be had by having more of them.
bool threads_wait_for_each_other(const Loading& loading) {
  return loading.input.num_workers > 0 && loading.idle > 0.5;
}

std::string times_text(double then, double now) {
  return fmt::format("{:.0f} samples/s predicted, now {:.0f}: {:.2f} times as fast", then, now, then / now);
}

Proposal proposal_of(const Loading& loading, const std::string& key, const std::string& value, double rate,
                     const std::string& remark = "") {
  return {.name = key,
          .setting = key + " = " + value,
          .requested = value,
          .applied = key == kThreads ? std::to_string(loading.input.num_workers) : "none",
          .reason = times_text(rate, loading.input.samples_per_second) + remark,
          .predicted_samples_per_second = rate};
}

// The fewest that are as good as the best number of them.
std::optional<Proposal> more_threads(const Loading& loading) {
  const LoadingInput& input = loading.input;
  const int most = std::max(16, 2 * input.cores);
  double best = 0;
  for (int count = input.num_workers + 1; count <= most; ++count) {
    best = std::max(best, predicted_rate_of_workers(input, count));
  }
  if (best < (1 + kGainMin) * input.samples_per_second) return std::nullopt;
  int count = input.num_workers + 1;
  while (predicted_rate_of_workers(input, count) < kNearlyAll * best) ++count;
  return proposal_of(loading, kThreads, std::to_string(count), predicted_rate_of_workers(input, count));
}

// Of a run that goes over its data again, and keeps nothing of it.
std::optional<Proposal> a_cache(const Loading& loading, const RunContents& run) {
  if (!run.recipe || run.recipe->data.cache != Cache::none || run.recipe->train.epochs < 2) return std::nullopt;
  const LoadingCosts& costs = loading.input.costs;
  const double rate = predicted_rate(loading.input, costs.sample_s() - costs.read_s - costs.decode_s);
  if (rate < (1 + kGainMin) * loading.input.samples_per_second) return std::nullopt;
  return proposal_of(loading, "data.cache", "\"decoded\"", rate, ", from the second epoch on, where all of it fits");
}

std::vector<Proposal> proposals_of(const Loading& loading, const RunContents& run) {
  std::vector<Proposal> proposals;
  if (loading.waits < kWaits || threads_wait_for_each_other(loading)) return proposals;
  if (auto proposal = more_threads(loading)) proposals.push_back(std::move(*proposal));
  if (auto proposal = a_cache(loading, run)) proposals.push_back(std::move(*proposal));
  std::stable_sort(proposals.begin(), proposals.end(), [](const Proposal& a, const Proposal& b) {
    return a.predicted_samples_per_second > b.predicted_samples_per_second;
  });
  return proposals;
}

std::string evidence_of(const Loading& loading) {
  const int workers = loading.input.num_workers;
  const std::string waits = fmt::format("the loop waits for data for {:.0f} % of its time", 100 * loading.waits);
  if (workers == 0) return waits + ", as it loads its batches itself (data.num_workers = 0)";
  const std::string threads = fmt::format("{} loader {}", workers, workers == 1 ? "thread" : "threads");
  if (threads_wait_for_each_other(loading)) {
    return fmt::format("{}, and its {} for something else for {:.0f} % of theirs: for each other, or for a core", waits,
                       threads, 100 * loading.idle);
  }
  if (!loading.cpu_share) return fmt::format("{}, with {}", waits, threads);
  return fmt::format("{}, with {}: {} ({:.0f} % of the loading is computing)", waits, threads,
                     *loading.cpu_share < 0.5 ? "reading waits" : "loading computes", 100 * *loading.cpu_share);
}

std::string advice_of(const Loading& loading, const std::vector<Proposal>& proposals) {
  if (threads_wait_for_each_other(loading)) {
    return "More threads would not help. A data set in Python wants worker_type = \"process\"; of one's own code look "
           "for a lock. Where other programs take the cores, end them.";
  }
  std::string advice;
  for (const Proposal& proposal : proposals) {
    advice += fmt::format("{} {} ({}). ", advice.empty() ? "Set" : "Or", proposal.setting, proposal.reason);
  }
  const bool more_would_help = std::any_of(proposals.begin(), proposals.end(),
                                           [](const Proposal& proposal) { return proposal.name == kThreads; });
  if (!more_would_help) {
    advice += fmt::format(
        "More threads alone would not help: {} cores load and compute. A sample is cheaper from a pack with smaller "
        "images (headrace pack --short-side), with data.index = \"build\", or with data.scale_decode = true. ",
        loading.input.cores);
  }
  return advice + "headrace tune tries and proves it.";
}

std::string larger_cache(const RunContents& run, double bytes) {
  constexpr double kMiB = 1 << 20;
  const auto limit = number(at(run.environment, {"machine", "memory_limit"}));
  if (limit && bytes > 0.5 * *limit) {
    return fmt::format(
        "All of them would take {} of the {} that there are: data.cache = \"encoded\" takes less a sample "
        "where they are files, and so does a pack of smaller images (headrace pack --short-side).",
        megabytes_text(bytes), megabytes_text(*limit));
  }
  return fmt::format(
      "Set data.cache_mib = {:.0f}, which holds all of them; data.cache = \"encoded\" takes less a sample "
      "where they are files.",
      std::ceil(bytes / kMiB));
}

struct CacheUse {
  double hits = 0, misses = 0, bytes = 0, samples_per_epoch = 0;

  double lookups() const { return hits + misses; }
  double rate() const { return hits / lookups(); }
  double repeated() const { return lookups() - samples_per_epoch; }  // Of samples that were asked for before.
};

std::optional<CacheUse> cache_use(const RunContents& run) {
  const Json& cache = at(run.loading(), {"cache"});
  const auto figure = [&cache](const char* name) { return number(at(cache, {name})).value_or(0); };
  const CacheUse use{figure("hits"), figure("misses"), figure("bytes"), figure("samples_per_epoch")};
  return use.lookups() > 0 ? std::optional(use) : std::nullopt;
}

void look_at_cache(const RunContents& run, std::vector<Finding>& findings) {
  constexpr double kLookupsMin = 100, kRateMin = 0.5, kHeld = 0.9;
  const std::optional<CacheUse> use = cache_use(run);
  if (!use || run.verb() != "train" || use->lookups() < kLookupsMin || !(use->rate() < kRateMin)) return;
  const std::string seen =
      fmt::format("{:.0f} % of {:.0f} look-ups were in the cache (data.cache)", 100 * use->rate(), use->lookups());
  const double held = use->repeated() > 0 ? use->hits / use->repeated() : 0;
  if (!(use->repeated() > 0.05 * use->lookups())) {
    findings.push_back({"low_hit_rate",
                        seen + ": nothing was asked for twice, as a cache pays from the second epoch on",
                        "Set data.cache = \"none\", which gives its memory back, or train for more epochs."});
  } else if (held > 0 && held < kHeld) {
    findings.push_back({"low_hit_rate",
                        fmt::format("{}: it is too small, as its {} hold {:.0f} % of the samples", seen,
                                    megabytes_text(use->bytes), 100 * held),
                        larger_cache(run, 1.05 * use->bytes / held)});
  } else if (held == 0) {
    findings.push_back({"low_hit_rate", seen + ": what is asked for again is never there",
                        "A cache that holds nothing only costs: look at data.cache_mib, and at what sampler asks for "
                        "which samples."});
  }
}

}  // namespace

std::vector<Proposal> loading_proposals(const RunContents& run, const Machine& here) {
  const std::optional<Loading> loading = loading_of(run, here);
  return loading ? proposals_of(*loading, run) : std::vector<Proposal>{};
}

std::vector<Finding> loading_findings(const RunContents& run, const Machine& here) {
  std::vector<Finding> findings;
  look_at_cache(run, findings);
  // A verdict that names a resource tells more.
  if (at(run.profile, {"diagnosis", "resources", "first"}).is_string()) return findings;
  const std::optional<Loading> loading = loading_of(run, here);
  if (loading && loading->waits >= kWaits) {
    findings.push_back(
        {"loop_waits_for_data", evidence_of(*loading), advice_of(*loading, proposals_of(*loading, run))});
  }
  return findings;
}

Json cache_stats(const RunContents& run) {
  const std::optional<CacheUse> use = cache_use(run);
  if (!use) return "unavailable: no sample was looked for in a cache";
  return {{"cache_hit_rate", use->rate()},
          {"hits", use->hits},
          {"misses", use->misses},
          {"memory_bytes", use->bytes},
          {"samples_per_epoch", use->samples_per_epoch}};
}

}  // namespace headrace
