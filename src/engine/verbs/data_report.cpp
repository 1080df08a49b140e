#include "engine/verbs/data_report.h"

#include <fmt/format.h>
#include <headrace/model.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/advice/loading_input.h"
#include "data/store/file_name.h"
#include "torch/tensor/compute.h"

namespace headrace {
namespace {

constexpr std::size_t kShown = 5;

std::vector<CorruptSample> corrupt_samples(const Training& training) {
  std::vector<CorruptSample> all = training.loader().corrupt_samples();
  for (const Loader* loader : {training.val_loader(), training.test_loader()}) {
    if (loader == nullptr) continue;
    const std::vector<CorruptSample> others = loader->corrupt_samples();
    all.insert(all.end(), others.begin(), others.end());
  }
  return all;
}

}  // namespace

void tell_remarks(Console& console, const RunSettings& settings, const Training& training) {
  for (const Applied& applied : settings.applied()) {
    if (applied.applied == applied.requested) continue;
    console.warning(fmt::format("{}: requested {}, applied {}: {}", applied.key, applied.requested, applied.applied,
                                applied.reason));
  }
  for (const Applied& applied : training.decided()) {
    if (applied.reason.empty() || applied.holds()) continue;
    console.warning(fmt::format("{} = {} is not applied ({}): {}", applied.key, applied.requested, applied.applied,
                                applied.reason));
  }
  for (const std::string& remark : training.remarks()) console.warning(remark);
  if (const auto file = script_file(training.recipe().model.name)) {
    console.info(fmt::format("model: {}: TorchScript runs code from this file: only for files that you trust",
                             printable_name(*file)));
  }
}

std::vector<Applied> all_applied(std::vector<Applied> of_training, const RunSettings& settings) {
  of_training.insert(of_training.end(), settings.applied().begin(), settings.applied().end());
  return of_training;
}

void tell_corrupt_samples(Console& console, const Training& training) {
  const std::vector<CorruptSample> all = corrupt_samples(training);
  if (all.empty()) return;
  const char* done = training.recipe().data.on_corrupt == OnCorrupt::zero ? "left out" : "replaced by others";
  console.warning(fmt::format("{} {} could not be read and {} {}:", all.size(), all.size() == 1 ? "sample" : "samples",
                              all.size() == 1 ? "was" : "were", done));
  for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) console.warning("  " + all[i].reason);
  if (all.size() > kShown) console.warning(fmt::format("  and {} more", all.size() - kShown));
}

void show_loading(Report& report, const Training& training) {
  for (const LoaderStage& stage : training.loader().statistics().stages()) {
    report.stages.push_back({std::string(stage.name), stage.records, static_cast<double>(stage.busy_ns) * 1e-9,
                             static_cast<double>(stage.wait_for_input_ns) * 1e-9,
                             static_cast<double>(stage.wait_for_output_ns) * 1e-9, stage.bytes, stage.queue,
                             stage.limits});
  }
  report.loading_plan = loading_plan(training.loader());
  for (const LoaderDecision& made : training.loader().decisions()) {
    report.decisions.push_back({made.batch, made.at_s, made.what, made.text_of(made.from), made.text_of(made.to),
                                made.why, made.before, made.after, made.rolled_back});
  }
  const Applied cache = training.loader().applied_cache();
  const LoaderStatistics now = training.loader().statistics();
  report.cache = Report::Cache{cache.applied, cache.reason, now.cache_hits, now.cache_misses, now.cache_bytes};
  if (now.latency_ns_p50 && now.latency_ns_p95 && now.latency_ns_p99) {
    const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
    report.latency =
        Report::Latency{seconds(*now.latency_ns_p50), seconds(*now.latency_ns_p95), seconds(*now.latency_ns_p99)};
  }
}

LoadingAdvice advise_loading(const Training& training, const Machine& machine, const TimeSplit& split,
                             std::int64_t samples_per_step) {
  LoadingInput input = loading_input(training.loader(), machine, compute_threads());
  const double samples = static_cast<double>(split.steps * samples_per_step);
  input.costs.copy_s = split.transfer_s / samples;
  input.consumer_busy_s = (split.total_s - split.data_wait_s) / samples;
  input.samples_per_second = samples / split.total_s;
  return advise(input);
}

nlohmann::ordered_json plan_json(const Training& training) {
  const LoaderPlan plan = training.loader().explain();
  const auto passes_json = [](const std::vector<LoaderPlan::Pass>& passes) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const LoaderPlan::Pass& pass : passes) {
      list.push_back({{"name", pass.name},
                      {"samples", pass.samples},
                      {"bytes_in", pass.bytes_in ? nlohmann::ordered_json(*pass.bytes_in) : nullptr},
                      {"bytes_out", pass.bytes_out ? nlohmann::ordered_json(*pass.bytes_out) : nullptr}});
    }
    return list;
  };
  const auto moved_json = [](const std::optional<LoaderPlan::Moved>& moved) -> nlohmann::ordered_json {
    if (!moved) return nullptr;
    return {{"copied", moved->copied}, {"touched", moved->touched}};
  };
  nlohmann::ordered_json transforms = nlohmann::ordered_json::array();
  for (const TransformStep& step : plan.transforms) {
    transforms.push_back({{"operations", step.operations}, {"fused", step.fused}, {"why", step.why}});
  }
  return {{"samples", plan.samples},
          {"transforms", std::move(transforms)},
          {"passes", passes_json(plan.passes)},
          {"stage_by_stage", passes_json(plan.stage_by_stage)},
          {"bytes_a_sample", moved_json(plan.moved)},
          {"bytes_a_sample_stage_by_stage", moved_json(plan.moved_stage_by_stage)}};
}

// What was looked for in the cache of decoded or encoded samples, since the loader was built.
nlohmann::ordered_json cache_json(const Training& training) {
  const Applied cache = training.loader().applied_cache();
  const LoaderStatistics now = training.loader().statistics();
  return {{"requested", cache.requested},
          {"applied", cache.applied},
          {"reason", cache.reason},
          {"hits", now.cache_hits},
          {"misses", now.cache_misses},
          {"bytes", now.cache_bytes},
          {"samples_per_epoch", training.batches_per_epoch() * training.recipe().data.batch_size}};
}

// In seconds, from asking for a batch to having it.
nlohmann::ordered_json latency_json(const Report& report) {
  if (!report.latency) return nullptr;
  return {{"p50_s", report.latency->p50_s}, {"p95_s", report.latency->p95_s}, {"p99_s", report.latency->p99_s}};
}

nlohmann::ordered_json loading_json(const Training& training) {
  const auto or_null = [](const auto& value) { return value ? nlohmann::ordered_json(*value) : nullptr; };
  Report report;
  show_loading(report, training);
  nlohmann::ordered_json stages = nlohmann::ordered_json::array(), decisions = nlohmann::ordered_json::array();
  for (const Report::Stage& stage : report.stages) {
    stages.push_back({{"name", stage.name},
                      {"records", stage.records},
                      {"busy_s", stage.busy_s},
                      {"wait_for_input_s", stage.wait_for_input_s},
                      {"wait_for_output_s", stage.wait_for_output_s},
                      {"bytes", stage.bytes},
                      {"queue", stage.queue},
                      {"limits", stage.limits}});
  }
  for (const LoaderDecision& made : training.loader().decisions()) {
    const auto value = [&made](std::int64_t number) -> nlohmann::ordered_json {
      if (made.what == "data.cache") return made.text_of(number);
      return number;
    };
    decisions.push_back({{"batch", made.batch},
                         {"at_s", made.at_s},
                         {"what", made.what},
                         {"from", value(made.from)},
                         {"to", value(made.to)},
                         {"why", made.why},
                         {"before", made.before},
                         {"after", or_null(made.after)},
                         {"rolled_back", made.rolled_back}});
  }
  const LoaderStatistics now = training.loader().statistics();
  nlohmann::ordered_json cpu_share = nullptr;  // Of the time in which the threads are busy.
  if (now.cpu_busy_ns > 0) cpu_share = static_cast<double>(now.cpu_ns) / static_cast<double>(now.cpu_busy_ns);
  return {{"num_workers", now.num_workers},    {"prefetch_batches", now.prefetch_batches},
          {"cpu_share", std::move(cpu_share)}, {"cache", cache_json(training)},
          {"stages", std::move(stages)},       {"latency", latency_json(report)},
          {"plan", plan_json(training)},       {"decisions", std::move(decisions)}};
}

nlohmann::ordered_json corrupt_samples_json(const Training& training) {
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const CorruptSample& sample : corrupt_samples(training)) {
    samples.push_back({{"name", sample.name}, {"reason", sample.reason}});
  }
  std::int64_t times = 0;
  for (const Loader* loader : {&training.loader(), training.val_loader(), training.test_loader()}) {
    times += loader == nullptr ? 0 : loader->statistics().corrupt;
  }
  return {{"on_corrupt", choice_name(training.recipe().data.on_corrupt)},
          {"times", times},
          {"samples", std::move(samples)}};
}

}  // namespace headrace
