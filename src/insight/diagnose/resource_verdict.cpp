#include <headrace/resource_verdict.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/fail.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/resource_advice.h"
#include "insight/diagnose/detail/resource_losses.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

using detail::LossEstimate;
using detail::StepMeans;

constexpr double kSureUnconfirmed = 0.9, kSureConfirmed = 0.99;
constexpr double kSpreadMin = 0.005;      // Of a step: no figure is known better.
constexpr double kLostMax = 0.99;         // Of a step: it never becomes less than 1 % of itself.
constexpr double kStageWeight = 0.05;     // Of a loss: what decides between stages whose absence would spare as much.
constexpr double kNormalInterval = 3.92;  // A 95 % interval of a normal distribution, in standard deviations.

void check_figure(const char* name, const std::optional<double>& value) {
  if (!value || (std::isfinite(*value) && *value >= 0)) return;
  fail(ErrorCode::invalid_argument, "insight: {}: wanted a finite number of at least 0, found {}", name, *value);
}

void check_parts(const PartUses& use) {
  for (const PartUse* part : {&use.data_wait, &use.transfer, &use.forward, &use.backward, &use.optimizer, &use.other}) {
    check_figure("use.wall_s", part->wall_s);
    check_figure("use.cpu_s", part->cpu_s);
    check_figure("use.run_delay_s", part->run_delay_s);
    check_figure("use.minor_faults", static_cast<double>(part->minor_faults));
    check_figure("use.major_faults", static_cast<double>(part->major_faults));
  }
}

void check_loading(const LoadingStages& loading) {
  check_figure("loading.read_s", loading.read_s);
  check_figure("loading.decode_s", loading.decode_s);
  check_figure("loading.augment_s", loading.augment_s);
  check_figure("loading.collate_s", loading.collate_s);
  check_figure("loading.warm_read_s", loading.warm_read_s);
  check_figure("loading.num_workers", static_cast<double>(loading.num_workers));
  check_figure("loading.prefetch_batches", static_cast<double>(loading.prefetch_batches));
  for (const double seconds : loading.batch_s) check_figure("loading.batch_s", seconds);
}

void check_count(const char* name, const std::optional<std::int64_t>& value) {
  if (value) check_figure(name, static_cast<double>(*value));
}

void check(const TimeSplit& split, const ResourceFigures& figures) {
  if (split.steps <= 0 || !(split.total_s > 0)) {
    fail(ErrorCode::invalid_argument, "insight: a verdict needs steps, found {} in {} s", split.steps, split.total_s);
  }
  if (figures.use) check_parts(*figures.use);
  if (figures.loading) check_loading(*figures.loading);
  check_figure("experiments.idle_compute_wait", figures.experiments.idle_compute_wait);
  check_figure("experiments.undisturbed_compute", figures.experiments.undisturbed_compute);
  if (const auto& free_data = figures.experiments.free_data) {
    check_figure("experiments.free_data.middle", free_data->middle);
    check_figure("experiments.free_data.low", free_data->low);
    check_figure("experiments.free_data.high", free_data->high);
  }
  check_figure("python_in_compute_s", figures.python_in_compute_s);
  check_figure("garbage_s", figures.garbage_s);
  check_figure("thread_delay_s", figures.thread_delay_s);
  check_figure("memory_stall_s", figures.memory_stall_s);
  for (const double seconds : figures.rank_busy_s) check_figure("rank_busy_s", seconds);
  check_figure("flops_per_step", figures.flops_per_step);
  check_count("update_bytes", figures.update_bytes);
  check_count("update_tensors", figures.update_tensors);
  check_count("transfer_bytes", figures.transfer_bytes);
  check_figure("peak_flops_per_s", figures.peak_flops_per_s);
  check_figure("peak_bytes_per_s", figures.peak_bytes_per_s);
  check_figure("page_fault_s", figures.page_fault_s);
}

// Of a standard normal variable, to lie below.
double probability_below(double value) {
  return 0.5 * std::erfc(-value / std::sqrt(2.0));
}

double spread_of(const LossEstimate& loss, double step_s) {
  return std::max((loss.high_s - loss.low_s) / kNormalInterval, kSpreadMin * step_s);
}

double capped(double confidence, bool confirmed) {
  return std::min(confidence, confirmed ? kSureConfirmed : kSureUnconfirmed);
}

// That this is above kLossMin of a step and above the next one.
double confidence_in(const LossEstimate& loss, double next_s, double next_spread_s, double step_s) {
  const double spread_s = spread_of(loss, step_s);
  const double above_limit = (loss.lost_s - kLossMin * step_s) / spread_s;
  // Not std::hypot, which g++ 12 takes from glibc 2.35.
  const double both_s = std::sqrt(spread_s * spread_s + next_spread_s * next_spread_s);
  const double above_next = (loss.lost_s - next_s) / both_s;
  return capped(probability_below(std::min(above_limit, above_next)), loss.confirmed);
}

double gain_without(double lost_s, double step_s) {
  return step_s / (step_s - std::min(lost_s, kLostMax * step_s)) - 1;
}

double order_of(const LossEstimate& loss) {
  return loss.lost_s * (1 + kStageWeight * loss.weight);
}

ResourceLoss shown(const LossEstimate& loss, double confidence, double step_s) {
  detail::ResourceAdvice advice = detail::advice_on(loss.resource, loss.loads_ahead);
  return {.resource = loss.resource,
          .lost_s = loss.lost_s,
          .gain = gain_without(loss.lost_s, step_s),
          .gain_low = gain_without(loss.low_s, step_s),
          .gain_high = gain_without(loss.high_s, step_s),
          .confidence = confidence,
          .confirmed = loss.confirmed,
          .evidence = loss.evidence,
          .advice = std::move(advice.sentence),
          .keys = std::move(advice.keys)};
}

// Behind what a verdict names, in brackets.
std::string sure_text(const ResourceVerdict& verdict, const ResourceFigures& figures) {
  const char* const how = verdict.confirmed           ? "confirmed by a differential run"
                          : figures.experiments.any() ? "not confirmed: no differential run shows it"
                                                      : "not confirmed: one run";
  return fmt::format("({}; {} sure)", how, detail::percent_text(verdict.confidence));
}

std::string peak_text(const ResourceVerdict& verdict, const ResourceFigures& figures) {
  if (verdict.peak_share) {
    return fmt::format("compute-bound at {} or more of this machine's measured peak",
                       detail::percent_text(*verdict.peak_share));
  }
  return fmt::format("compute-bound; its share of this machine's peak is unavailable{}{}",
                     figures.why_no_peak.empty() ? "" : ": ", figures.why_no_peak);
}

std::string healthy_text(const ResourceVerdict& verdict, const ResourceFigures& figures, const LossEstimate* largest,
                         double step_s) {
  const char* const begin = figures.use ? "nothing is wrong: " : "nothing that was recorded is wrong: ";
  std::string text = begin + peak_text(verdict, figures);
  if (largest != nullptr) {
    text += fmt::format("; the largest loss, {}, is {} of a step", to_string(largest->resource),
                        detail::percent_text(largest->lost_s / step_s));
  }
  return text;
}

std::string loss_text(const ResourceLoss& loss) {
  return fmt::format("{} runs out first: {}; without it the loop would run {} faster {}", to_string(loss.resource),
                     loss.evidence, detail::percent_text(loss.gain),
                     detail::interval_text(loss.gain_low, loss.gain_high));
}

// The one place that says of a verdict whether it is confirmed.
void conclude(ResourceVerdict& verdict, const std::string& named, const ResourceFigures& figures) {
  verdict.sentence = fmt::format("{} {}", named, sure_text(verdict, figures));
  verdict.to_confirm = detail::how_to_confirm(verdict, figures);
}

void note_peak(ResourceVerdict& verdict, const StepMeans& mean, const ResourceFigures& figures) {
  if (!figures.flops_per_step || !figures.peak_flops_per_s || !(*figures.peak_flops_per_s > 0)) return;
  if (mean.compute_s() > 0) verdict.peak_share = *figures.flops_per_step / mean.compute_s() / *figures.peak_flops_per_s;
}

std::optional<BoundShares> shares_of(const std::vector<LossEstimate>& losses, const StepMeans& mean,
                                     const ResourceFigures& figures) {
  if (!figures.use) return std::nullopt;
  const auto share = [&](Resource resource) {
    double lost_s = 0;
    for (const LossEstimate& loss : losses) {
      if (loss.resource == resource) lost_s += loss.lost_s;
    }
    return lost_s / mean.step_s;
  };
  BoundShares shares;
  shares.data = mean.data_wait_s / mean.step_s;
  shares.copy = mean.transfer_s / mean.step_s;
  const double left = 1 - shares.data - shares.copy;
  shares.memory = std::min(share(Resource::memory), left);
  shares.synchronisation = std::min(share(Resource::synchronisation), left - shares.memory);
  shares.compute = left - shares.memory - shares.synchronisation;
  return shares;
}

// What is below kLossMin is not told, but the first of them sets the bounds of how sure anything is.
void note_losses(ResourceVerdict& verdict, const std::vector<LossEstimate>& ordered, double step_s) {
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    if (ordered[i].lost_s < kLossMin * step_s) continue;
    const bool is_last = i + 1 == ordered.size();
    const double next_s = is_last ? 0 : ordered[i + 1].lost_s;
    const double next_spread_s = is_last ? 0 : spread_of(ordered[i + 1], step_s);
    verdict.losses.push_back(shown(ordered[i], confidence_in(ordered[i], next_s, next_spread_s, step_s), step_s));
  }
}

nlohmann::ordered_json to_json(const std::optional<BoundShares>& shares) {
  if (!shares) return nullptr;
  return {{"data", shares->data},
          {"copy", shares->copy},
          {"memory", shares->memory},
          {"synchronisation", shares->synchronisation},
          {"compute", shares->compute}};
}

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

ResourceVerdict judge_resources(const TimeSplit& split, const ResourceFigures& figures) {
  check(split, figures);
  const StepMeans mean = detail::means_of(split);
  detail::Losses losses = detail::estimate_losses(split, figures);
  std::stable_sort(losses.known.begin(), losses.known.end(),
                   [](const LossEstimate& a, const LossEstimate& b) { return order_of(a) > order_of(b); });
  ResourceVerdict verdict;
  verdict.unavailable = std::move(losses.unavailable);
  verdict.shares = shares_of(losses.known, mean, figures);
  note_peak(verdict, mean, figures);
  note_losses(verdict, losses.known, mean.step_s);
  const LossEstimate* const largest = losses.known.empty() ? nullptr : &losses.known.front();
  const double largest_s = largest == nullptr ? 0 : largest->lost_s;
  if (losses.unknown_s >= kLossMin * mean.step_s && losses.unknown_s > largest_s) {
    verdict.sentence = "what runs out first is not known: " + losses.unknown;
    return verdict;
  }
  if (!verdict.losses.empty()) {
    verdict.first = verdict.losses.front().resource;
    verdict.confidence = verdict.losses.front().confidence;
    verdict.confirmed = verdict.losses.front().confirmed;
    conclude(verdict, loss_text(verdict.losses.front()), figures);
    return verdict;
  }
  verdict.first = Resource::compute;
  verdict.healthy = true;
  verdict.confirmed = figures.experiments.free_data.has_value();
  const double spread_s = largest == nullptr ? kSpreadMin * mean.step_s : spread_of(*largest, mean.step_s);
  verdict.confidence = capped(probability_below((kLossMin * mean.step_s - largest_s) / spread_s), verdict.confirmed);
  conclude(verdict, healthy_text(verdict, figures, largest, mean.step_s), figures);
  return verdict;
}

nlohmann::ordered_json to_json(const ResourceVerdict& verdict) {
  nlohmann::ordered_json losses = nlohmann::ordered_json::array();
  for (const ResourceLoss& loss : verdict.losses) {
    losses.push_back({{"resource", to_string(loss.resource)},
                      {"lost_s", loss.lost_s},
                      {"gain", {{"middle", loss.gain}, {"low", loss.gain_low}, {"high", loss.gain_high}}},
                      {"confidence", loss.confidence},
                      {"confirmed", loss.confirmed},
                      {"evidence", loss.evidence},
                      {"advice", loss.advice},
                      {"keys", loss.keys}});
  }
  return {
      {"first", verdict.first ? nlohmann::ordered_json(to_string(*verdict.first)) : nlohmann::ordered_json(nullptr)},
      {"healthy", verdict.healthy},
      {"confidence", verdict.confidence},
      {"confirmed", verdict.confirmed},
      {"sentence", verdict.sentence},
      {"to_confirm",
       verdict.to_confirm.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(verdict.to_confirm)},
      {"peak_share", or_null(verdict.peak_share)},
      {"shares", to_json(verdict.shares)},
      {"losses", std::move(losses)},
      {"unavailable", verdict.unavailable}};
}

std::string json_text(const ResourceVerdict& verdict) {
  return to_json(verdict).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace headrace
