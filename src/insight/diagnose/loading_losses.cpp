#include "insight/diagnose/detail/loading_losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "insight/diagnose/detail/figures.h"

namespace headrace {

double simulated_wait(const std::vector<double>& batch_s, int num_workers, int prefetch_batches, double compute_s) {
  if (batch_s.empty()) return 0;
  const auto workers = static_cast<std::size_t>(std::max(1, num_workers));
  const std::size_t ahead = std::max(workers, static_cast<std::size_t>(std::max(1, prefetch_batches)));
  std::vector<double> free_at(workers, 0.0), taken_at(batch_s.size(), 0.0);
  double now = 0, waited = 0, first_wait = 0;
  for (std::size_t i = 0; i < batch_s.size(); ++i) {
    double& worker = free_at[i % workers];
    worker = std::max(worker, i < ahead ? 0.0 : taken_at[i - ahead]) + batch_s[i];
    const double wait = std::max(0.0, worker - now);
    if (i == 0) first_wait = wait;  // Of an epoch's beginning, not of its pace.
    waited += wait;
    now = taken_at[i] = std::max(now, worker);
    now += compute_s;
  }
  const auto others = static_cast<double>(batch_s.size() - 1);
  return others > 0 ? (waited - first_wait) / others : waited;
}

namespace detail {
namespace {

constexpr std::size_t kBatchesMin = 8;  // Of fewer it is not said that they differ.

struct Stage {
  Resource resource;
  double seconds;  // Of a batch.
  const char* what;
};

std::array<Stage, 4> stages_of(const LoadingStages& loading) {
  return {{{Resource::storage, loading.read_s, "to be read"},
           {Resource::decode, loading.decode_s, "to be decoded"},
           {Resource::augment, loading.augment_s, "to be transformed"},
           {Resource::collate, loading.collate_s, "to become batches"}}};
}

// nullopt: nobody timed them. Where the training thread loads, what waits is reading then, and what computes decoding.
std::optional<LoadingStages> timed_stages(const StepMeans& mean, const ResourceFigures& figures) {
  if (!figures.loading) return std::nullopt;
  LoadingStages loading = *figures.loading;
  if (!(loading.total_s() > 0) && loading.num_workers == 0 && figures.use) {
    loading.read_s = figures.use->data_wait.blocked_s() / mean.steps;
    loading.decode_s = figures.use->data_wait.cpu_s / mean.steps;
  }
  if (!(loading.total_s() > 0)) return std::nullopt;
  return loading;
}

// Mean wait of the model's pipeline when its batches take `seconds` each.
double even_wait(const LoadingStages& loading, double seconds, double compute_s) {
  return std::max(0.0, seconds / loading.num_workers - compute_s);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of the wait, what is left when a stage costs nothing, from 0 to 1.
double left_without(const LoadingStages& loading, const Stage& stage, double compute_s) {
  const double total_s = loading.total_s();
  const double by_cost = 1 - stage.seconds / total_s;
  if (loading.num_workers == 0) return by_cost;
  const double now_s = even_wait(loading, total_s, compute_s);
  return now_s > 0 ? even_wait(loading, total_s - stage.seconds, compute_s) / now_s : by_cost;
}

// Of the wait, what would be spared if each batch took their mean, from 0 to 1.
double uneven_share(const LoadingStages& loading, double compute_s) {
  if (loading.num_workers == 0 || loading.batch_s.size() < kBatchesMin) return 0;
  const auto wait = [&](const std::vector<double>& batch_s) {
    return simulated_wait(batch_s, loading.num_workers, loading.prefetch_batches, compute_s);
  };
  const double now_s = wait(loading.batch_s);
  const double even_s = wait(std::vector<double>(loading.batch_s.size(), mean_of(loading.batch_s)));
  return now_s > 0 ? std::clamp(1 - even_s / now_s, 0.0, 1.0) : 0;
}

struct OwnWait {
  double seconds;  // Of a step.
  bool confirmed;
};

// The part of the wait that goes with the data; the rest is what compute and loading take from each other.
OwnWait own_wait(const StepMeans& mean, const ResourceFigures& figures, LoadingLosses& losses) {
  const StepExperiments& found = figures.experiments;
  OwnWait own{mean.data_wait_s, false};
  const double spared_s = found.free_data ? std::max(0.0, mean.step_s - found.free_data->middle) : 0;
  if (found.free_data) own = {std::min(own.seconds, spared_s), true};
  own.confirmed = own.confirmed || found.idle_compute_wait.has_value();
  if (figures.loading && figures.loading->num_workers == 0) return own;  // Nobody loads beside compute.
  if (found.free_data) {
    losses.taken_from_compute_s = std::max(0.0, spared_s - mean.data_wait_s);
    losses.taking_is_measured = true;
  }
  if (found.idle_compute_wait && *found.idle_compute_wait < own.seconds) {
    losses.taken_from_compute_s += own.seconds - *found.idle_compute_wait;
    losses.taking_is_measured = true;
    own.seconds = *found.idle_compute_wait;
  }
  if (found.undisturbed_compute) {
    const double taken_s = mean.busy_s() - *found.undisturbed_compute;
    losses.taken_from_compute_s = std::max(losses.taken_from_compute_s, taken_s);
    losses.taking_is_measured = true;
  }
  return own;
}

std::string evidence_of(const Stage& stage, const LoadingStages& loading, double lost_s, const StepMeans& mean) {
  std::string text = fmt::format("a step waits {} for samples {}, {} of it", milliseconds_text(lost_s), stage.what,
                                 percent_text(lost_s / mean.step_s));
  if (loading.num_workers == 0) text += ", as no worker loads ahead (data.num_workers = 0)";
  if (stage.resource == Resource::storage && loading.warm_read_s && *loading.warm_read_s < 0.5 * stage.seconds) {
    text += fmt::format("; a second reading takes {} of the first", percent_text(*loading.warm_read_s / stage.seconds));
  }
  return text;
}

// Half of the interval of a loss, over it: of measured data its own.
double error_of(const StepMeans& mean, const ResourceFigures& figures, double wait_error) {
  const auto& free_data = figures.experiments.free_data;
  const double spared_s = free_data ? mean.step_s - free_data->middle : 0;
  if (!free_data || !(spared_s > 0)) return wait_error;
  return std::min(1.0, (free_data->high - free_data->low) / 2 / spared_s);
}

}  // namespace

LoadingLosses loading_losses(const StepMeans& mean, double wait_error, const ResourceFigures& figures) {
  LoadingLosses losses;
  const OwnWait own = own_wait(mean, figures, losses);
  const std::optional<LoadingStages> loading = timed_stages(mean, figures);
  if (!loading) {
    losses.unknown_s = own.seconds;
    return losses;
  }
  const double error = error_of(mean, figures, wait_error);
  const auto add = [&](Resource resource, double lost_s, double weight, std::string evidence) {
    if (!(lost_s > 0)) return;
    LossEstimate loss = loss_of(resource, lost_s, error, std::move(evidence));
    loss.confirmed = own.confirmed;
    loss.loads_ahead = loading->num_workers > 0;
    loss.weight = weight;
    losses.stages.push_back(std::move(loss));
  };
  const double uneven = uneven_share(*loading, mean.busy_s());
  const double uneven_s = own.seconds * uneven;
  add(Resource::imbalance, uneven_s, 1,
      fmt::format("a step waits {} because some batches take longer than others, {} of it", milliseconds_text(uneven_s),
                  percent_text(uneven_s / mean.step_s)));
  for (const Stage& stage : stages_of(*loading)) {
    const double lost_s = own.seconds * (1 - uneven) * (1 - left_without(*loading, stage, mean.busy_s()));
    add(stage.resource, lost_s, stage.seconds / loading->total_s(), evidence_of(stage, *loading, lost_s, mean));
  }
  return losses;
}

}  // namespace detail
}  // namespace headrace
