// What could make loading faster: leaving out a transform, or making it elsewhere.
#include <headrace/loading_advice.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/fail.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

constexpr double kWorthwhile = 0.01;  // Of what a sample costs. What saves less is not told from noise.

// Seconds of a sample at the pace of the slowest part.
double pace_s(const LoadingInput& input, double sample_s) {
  if (input.num_workers == 0) return sample_s + input.consumer_busy_s;
  const double computing_s =
      sample_s * input.cpu_share + input.consumer_busy_s * std::min(input.compute_threads, input.cores);
  return std::max({sample_s / input.num_workers, input.consumer_busy_s, computing_s / input.cores});
}

// Of a sample. A part that the loader's cache spares saves nothing.
double saved_s(const LoadingCosts& costs, const LoadingInput::Transform& transform) {
  return transform.read_share * costs.read_s + transform.decode_share * costs.decode_s +
         transform.augment_share * costs.augment_s;
}

Proposal without(const LoadingInput& input, const LoadingInput::Transform& transform) {
  const double sample_s = input.costs.sample_s(), saved = saved_s(input.costs, transform);
  const double rate = predicted_rate(input, sample_s - saved);
  return {.name = "without " + transform.name,
          .setting = transform.setting,
          .requested = "off",
          .applied = "on",
          .reason = fmt::format("{} predicted, now {}; the dearest transform that could be left out takes {}, {} of "
                                "what a sample costs",
                                detail::rate_text(rate), detail::rate_text(input.samples_per_second),
                                detail::milliseconds_text(saved), detail::percent_text(saved / sample_s)),
          .predicted_samples_per_second = rate};
}

Proposal on_the_gpu(const LoadingInput& input) {
  constexpr std::string_view kUnavailable = "unavailable";
  const bool has_device = !input.gpu.empty() && input.gpu.rfind(kUnavailable, 0) != 0;
  const std::string why = input.gpu.empty() ? std::string(kUnavailable) : input.gpu;
  return {.name = "augment on the GPU",
          .setting = "",
          .requested = "gpu",
          .applied = "cpu",
          .reason = has_device ? fmt::format("everything here computes on the CPU; the device, {}, is not used", why)
                               : fmt::format("no CUDA device ({})", why),
          .applicable = false,
          .predicted_samples_per_second = {}};
}

void check(const LoadingInput& input) {
  if (input.num_workers >= 0 && input.compute_threads >= 1 && input.cores >= 1) return;
  fail(ErrorCode::invalid_argument,
       "insight: a prediction needs cores (have {}), threads of compute ({}) and of the loader ({})", input.cores,
       input.compute_threads, input.num_workers);
}

// The measured rate, scaled by the pace of now and then.
double scaled_rate(const LoadingInput& input, double then_s) {
  const double now_s = pace_s(input, input.costs.sample_s());
  return now_s > 0 && then_s > 0 ? input.samples_per_second * now_s / then_s : input.samples_per_second;
}

}  // namespace

double predicted_rate(const LoadingInput& input, double sample_s) {
  check(input);
  return scaled_rate(input, pace_s(input, sample_s));
}

double predicted_rate_of_workers(const LoadingInput& input, int num_workers) {
  LoadingInput then = input;
  then.num_workers = num_workers;
  check(input);
  check(then);
  return scaled_rate(input, pace_s(then, then.costs.sample_s()));
}

LoadingAdvice advise(const LoadingInput& input) {
  LoadingAdvice advice{input.costs, {}};
  const auto saves_less = [&](const auto& a, const auto& b) {
    return saved_s(input.costs, a) < saved_s(input.costs, b);
  };
  const auto dearest = std::max_element(input.transforms.begin(), input.transforms.end(), saves_less);
  const double least_s = kWorthwhile * input.costs.sample_s();
  if (dearest != input.transforms.end() && least_s > 0 && saved_s(input.costs, *dearest) >= least_s) {
    advice.proposals.push_back(without(input, *dearest));
  }
  advice.proposals.push_back(on_the_gpu(input));
  return advice;
}

nlohmann::ordered_json to_json(const LoadingAdvice& advice) {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json proposals = nlohmann::ordered_json::array();
  for (const Proposal& proposal : advice.proposals) {
    proposals.push_back({{"name", proposal.name},
                         {"setting", proposal.setting},
                         {"requested", proposal.requested},
                         {"applied", proposal.applied},
                         {"applicable", proposal.applicable},
                         {"reason", proposal.reason},
                         {"predicted_samples_per_second", or_null(proposal.predicted_samples_per_second)}});
  }
  const LoadingCosts& costs = advice.costs;
  return {{"seconds_a_sample",
           {{"read", costs.read_s},
            {"decode", costs.decode_s},
            {"augment", costs.augment_s},
            {"collate", costs.collate_s},
            {"copy", or_null(costs.copy_s)}}},
          {"proposals", std::move(proposals)}};
}

}  // namespace headrace
