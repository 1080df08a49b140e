
#include <headrace/diagnosis.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/base/fail.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

constexpr double kDataBoundGain = 0.10;
constexpr double kUnexplained = 0.5;  // Of a step in no part: the parts that are known do not tell what bounds it.

void check_figure(const char* name, double value) {
  if (!(std::isfinite(value) && value >= 0)) {
    fail(ErrorCode::invalid_argument, "insight: {}: wanted a finite number of at least 0, found {}", name, value);
  }
}

void check(const FindingThresholds& thresholds) {
  check_figure("thresholds.data_loading_ratio", thresholds.data_loading_ratio);
  check_figure("thresholds.memory_bytes", static_cast<double>(thresholds.memory_bytes));
  check_figure("thresholds.speed_ratio", thresholds.speed_ratio);
  check_figure("thresholds.optimizer_share", thresholds.optimizer_share);
  check_figure("thresholds.unaccounted_share", thresholds.unaccounted_share);
  if (thresholds.speed_steps >= 1) return;
  fail(ErrorCode::invalid_argument, "insight: thresholds.speed_steps: wanted at least 1, found {}",
       thresholds.speed_steps);
}

void check(const DiagnosisInput& input) {
  check(input.thresholds);
  const TimeSplit& split = input.split;
  if (split.steps <= 0 || !(split.total_s > 0) || input.samples_per_step <= 0 || input.cores <= 0 ||
      input.compute_threads <= 0 || input.num_workers <= 0) {
    fail(ErrorCode::invalid_argument,
         "insight: a diagnosis needs steps (have {} in {} s), samples per step ({}), cores ({}), threads of compute "
         "({}) "
         "and of the loader ({}), all above 0",
         split.steps, split.total_s, input.samples_per_step, input.cores, input.compute_threads, input.num_workers);
  }
}

// Seconds of all steps that compute would get back if loader workers did nothing.
//
// Measured where the undisturbed step is known. Else loading costs `loader_busy_s` core seconds. It gets them for
// nothing where a core is free: every core while the step waits for data (but no more of them than there are loader
// threads), and cores beyond compute's own for the rest. What remains was taken from compute, which is slower by that
// over its threads. Even division is assumed; compute whose threads wait for each other loses more, so the prediction
// is a lower bound.
double stolen_s(const DiagnosisInput& input) {
  if (input.undisturbed_step_s) {
    const double compute_s = input.split.total_s - input.split.data_wait_s;
    return std::max(0.0, compute_s - *input.undisturbed_step_s * static_cast<double>(input.split.steps));
  }
  if (!input.loader_busy_s || input.compute_threads + input.num_workers <= input.cores) return 0;
  const double wait_s = input.split.data_wait_s;
  const double compute_s = input.split.total_s - wait_s;
  const double free_in_wait = wait_s * std::min(input.num_workers, input.cores);
  const double free_in_compute = compute_s * std::max(0, input.cores - input.compute_threads);
  const double taken = std::max(0.0, *input.loader_busy_s - free_in_wait - free_in_compute);
  // More threads than cores compute no faster than the cores do, so a core second is worth 1 / cores then.
  return std::min(taken / std::min(input.compute_threads, input.cores), 0.99 * compute_s);
}

Finding finding(std::string code, std::string sentence, std::vector<Finding::Suggestion> suggestions) {
  Finding result{std::move(code), std::move(sentence), {}, std::move(suggestions)};
  for (const Finding::Suggestion& suggestion : result.suggestions) {
    result.advice += (result.advice.empty() ? "" : " ") + suggestion.sentence;
  }
  return result;
}

double share(double part_s, const DiagnosisInput& input) {
  return part_s / input.split.total_s;
}

std::string gain_sentence(const Diagnosis& diagnosis) {
  const std::string predicted = detail::percent_text(diagnosis.predicted_free_data_gain);
  if (!diagnosis.measured_free_data_gain) {
    return fmt::format("without loading it would run {} faster (predicted)", predicted);
  }
  const double measured = *diagnosis.measured_free_data_gain;
  if (measured <= 0) {
    return fmt::format("without loading it runs no faster (measured {}; predicted {})", detail::gain_text(measured),
                       detail::gain_text(diagnosis.predicted_free_data_gain));
  }
  return fmt::format("without loading it runs {} faster (measured; predicted {})", detail::percent_text(measured),
                     predicted);
}

std::string sentence(const DiagnosisInput& input, const Diagnosis& diagnosis, double stolen) {
  const TimeSplit& split = input.split;
  if (diagnosis.bound == Bound::compute) {
    return fmt::format("compute-bound: {} of a step is forward and backward, {} the optimizer; {}",
                       detail::percent_text(share(split.forward_s + split.backward_s, input)),
                       detail::percent_text(share(split.optimizer_s, input)), gain_sentence(diagnosis));
  }
  if (diagnosis.bound == Bound::unknown) {
    return fmt::format(
        "what bounds it is not known: {} of a step lies in no part, {} is forward and backward, {} a wait for data",
        detail::percent_text(share(split.other_s, input)),
        detail::percent_text(share(split.forward_s + split.backward_s, input)),
        detail::percent_text(share(split.data_wait_s, input)));
  }
  std::string cause = fmt::format("{} of a step waits for data", detail::percent_text(share(split.data_wait_s, input)));
  if (stolen > 0) {
    cause += fmt::format(" and loader workers take {} of it from compute", detail::percent_text(share(stolen, input)));
  }
  return fmt::format("data-bound: {}; {}", cause, gain_sentence(diagnosis));
}

void find_slow_data(double loading_s, double compute_s, double steps, const FindingThresholds& thresholds,
                    std::vector<Finding>& findings) {
  if (!(loading_s > thresholds.data_loading_ratio * compute_s)) return;
  findings.push_back(
      finding("data_loading_slow",
              fmt::format("A step spends {} on getting its batch, {} on computing (allowed: {} of that).",
                          detail::milliseconds_text(loading_s / steps), detail::milliseconds_text(compute_s / steps),
                          detail::percent_text(thresholds.data_loading_ratio)),
              {{"Give the loader more workers (data.num_workers).", {"data.num_workers"}},
               {"Let it prepare more batches ahead (data.prefetch_batches).", {"data.prefetch_batches"}},
               {"Cache decoded samples (data.cache).", {"data.cache"}}}));
}

// The mean is judged where it is known, else the peak.
void find_high_memory(std::optional<std::int64_t> mean, std::optional<std::int64_t> peak,
                      const FindingThresholds& thresholds, std::vector<Finding>& findings) {
  const std::optional<std::int64_t> memory = mean ? mean : peak;
  if (!memory || *memory <= thresholds.memory_bytes) return;
  findings.push_back(
      finding("high_memory",
              fmt::format("{} memory is {:.2f} GB, above {:.2f} GB.", mean ? "Mean" : "Peak",
                          static_cast<double>(*memory) * 1e-9, static_cast<double>(thresholds.memory_bytes) * 1e-9),
              {{"Use a smaller batch with accumulation (train.gradient_accumulation_steps).",
                {"train.gradient_accumulation_steps", "train.micro_batches"}},
               {"Use mixed precision where it is not slower (train.precision).", {"train.precision"}}}));
}

void find_degraded_speed(const std::vector<double>& speeds, const FindingThresholds& thresholds,
                         std::vector<Finding>& findings) {
  const auto last = static_cast<std::size_t>(thresholds.speed_steps);
  if (speeds.size() <= last) return;
  const double all_mean = std::accumulate(speeds.begin(), speeds.end(), 0.0) / static_cast<double>(speeds.size());
  const double last_mean =
      std::accumulate(speeds.end() - static_cast<std::ptrdiff_t>(last), speeds.end(), 0.0) / static_cast<double>(last);
  if (!(last_mean < thresholds.speed_ratio * all_mean)) return;
  findings.push_back(
      {"speed_degraded",
       fmt::format("The last {} steps ran at {} samples/s, {} of the mean of all {} steps ({}).", last,
                   detail::grouped(last_mean), detail::percent_text(last_mean / all_mean), speeds.size(),
                   detail::grouped(all_mean)),
       "Look for memory that grows, for data that is slower to load, and for other work on this machine."});
}

void find_rules_of_training(const DiagnosisInput& input, std::vector<Finding>& findings) {
  const TimeSplit& split = input.split;
  find_slow_data(split.data_wait_s + split.transfer_s, split.forward_s + split.backward_s + split.optimizer_s,
                 static_cast<double>(split.steps), input.thresholds, findings);
  find_high_memory(input.mean_memory, input.peak_memory, input.thresholds, findings);
  std::vector<double> speeds;
  speeds.reserve(split.step_s.size());
  for (const double seconds : split.step_s) speeds.push_back(static_cast<double>(input.samples_per_step) / seconds);
  find_degraded_speed(speeds, input.thresholds, findings);
}

void find_large_shares(const DiagnosisInput& input, double stolen, std::vector<Finding>& findings) {
  const TimeSplit& split = input.split;
  if (share(split.optimizer_s, input) > input.thresholds.optimizer_share) {
    const Finding::Suggestion fused{"Try optimizer.fused = true.", {"optimizer.fused"}};
    const Finding::Suggestion none{"optimizer.fused is true already.", {}};
    findings.push_back(
        finding("optimizer_slow",
                fmt::format("The optimizer takes {} of a step.", detail::percent_text(share(split.optimizer_s, input))),
                {input.has_fused_optimizer ? none : fused}));
  }
  if (stolen > 0) {
    findings.push_back(finding(
        "cores_oversubscribed",
        fmt::format(
            "Compute threads ({}) and loader workers ({}) share {} cores; loading takes about {} of a step from "
            "compute.",
            input.compute_threads, input.num_workers, input.cores, detail::percent_text(share(stolen, input))),
        {{"Divide the cores between loading and compute (data.num_workers, compute.intra_op_threads).",
          {"data.num_workers", "compute.intra_op_threads"}},
         {"Make a sample cheaper.", {}}}));
  }
  if (share(split.other_s, input) > input.thresholds.unaccounted_share) {
    findings.push_back({"time_unaccounted",
                        fmt::format("{} of a step lies in no part.", detail::percent_text(share(split.other_s, input))),
                        "Add spans around your own code between the parts; until then this time cannot be explained."});
  }
}

Finding finding_of(const ResourceLoss& loss) {
  return finding(fmt::format("{}_limits", to_string(loss.resource)),
                 fmt::format("{}: {}.", to_string(loss.resource), loss.evidence), {{loss.advice, loss.keys}});
}

}  // namespace

const char* to_string(Bound bound) noexcept {
  switch (bound) {
    case Bound::compute:
      return "compute";
    case Bound::data:
      return "data";
    case Bound::unknown:
      return "unknown";
  }
  return "unknown";
}

Diagnosis diagnose(const DiagnosisInput& input) {
  check(input);
  const TimeSplit& split = input.split;
  const double step_s = split.total_s / static_cast<double>(split.steps);
  const double stolen = stolen_s(input);

  Diagnosis diagnosis;
  diagnosis.samples_per_second = static_cast<double>(input.samples_per_step) / step_s;
  // A split that is nothing but waiting predicts a finite gain too: a step never becomes less than 1 % of itself.
  const double free_s = std::max(split.total_s - split.data_wait_s - stolen, 0.01 * split.total_s);
  diagnosis.predicted_free_data_gain = split.total_s / free_s - 1;
  if (input.free_data_step_s && *input.free_data_step_s > 0) {
    diagnosis.measured_free_data_gain = step_s / *input.free_data_step_s - 1;
  }
  const double gain = diagnosis.measured_free_data_gain.value_or(diagnosis.predicted_free_data_gain);
  diagnosis.bound = gain >= kDataBoundGain ? Bound::data : Bound::compute;
  if (!diagnosis.measured_free_data_gain && diagnosis.bound == Bound::compute &&
      share(split.other_s, input) > kUnexplained) {
    diagnosis.bound = Bound::unknown;
  }
  diagnosis.sentence = sentence(input, diagnosis, stolen);
  find_rules_of_training(input, diagnosis.findings);
  find_large_shares(input, stolen, diagnosis.findings);
  if (!input.resources) return diagnosis;
  diagnosis.resources = judge_resources(split, *input.resources);
  if (!diagnosis.resources->losses.empty() && diagnosis.resources->first) {
    diagnosis.findings.insert(diagnosis.findings.begin(), finding_of(diagnosis.resources->losses.front()));
  }
  return diagnosis;
}

std::vector<Finding> identify_bottlenecks(const BottleneckInput& input) {
  if (input.batches <= 0)
    fail(ErrorCode::invalid_argument, "insight: batches: wanted above 0, found {}", input.batches);
  check_figure("data_loading_s", input.data_loading_s);
  check_figure("compute_s", input.compute_s);
  check(input.thresholds);
  for (const double speed : input.speeds) check_figure("speeds", speed);
  std::vector<Finding> findings;
  find_slow_data(input.data_loading_s, input.compute_s, static_cast<double>(input.batches), input.thresholds, findings);
  find_high_memory(input.mean_memory, std::nullopt, input.thresholds, findings);
  find_degraded_speed(input.speeds, input.thresholds, findings);
  return findings;
}

nlohmann::ordered_json to_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& found : findings) {
    list.push_back({{"code", found.code}, {"sentence", found.sentence}, {"advice", found.advice}});
  }
  return list;
}

nlohmann::ordered_json to_json(const Diagnosis& diagnosis) {
  nlohmann::ordered_json measured = nullptr;
  if (diagnosis.measured_free_data_gain) measured = *diagnosis.measured_free_data_gain;
  return {{"bound", to_string(diagnosis.bound)},
          {"samples_per_second", diagnosis.samples_per_second},
          {"predicted_free_data_gain", diagnosis.predicted_free_data_gain},
          {"measured_free_data_gain", measured},
          {"sentence", diagnosis.sentence},
          {"findings", to_json(diagnosis.findings)},
          {"resources", diagnosis.resources ? to_json(*diagnosis.resources) : nlohmann::ordered_json(nullptr)}};
}

std::string json_text(const Diagnosis& diagnosis) {
  return to_json(diagnosis).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace headrace
