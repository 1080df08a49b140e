// Reports for tests: one as a good run gives it, one whose every text is hostile.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/error.h>
#include <headrace/loading_advice.h>
#include <headrace/report.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "insight/diagnose/sample_trace.h"

namespace headrace {

inline TimeSplit sample_split(double data_wait, double transfer, double forward, double backward, double optimizer,
                              double other) {
  TimeSplit split;
  split.steps = 40;
  split.data_wait_s = data_wait;
  split.transfer_s = transfer;
  split.forward_s = forward;
  split.backward_s = backward;
  split.optimizer_s = optimizer;
  split.other_s = other;
  split.total_s = data_wait + transfer + forward + backward + optimizer + other;
  split.step_s.assign(40, split.total_s / 40);
  split.parts.assign(40, {data_wait / 40, transfer / 40, forward / 40, backward / 40, optimizer / 40});
  return split;
}

inline std::vector<Report::Change> sample_changes() {
  return {{"fused optimizer",
           "AdamW in one pass over each parameter.",
           "kept",
           "19.8 % faster: 95 % interval 17.9 % to 21.6 %, over 12 pairs.",
           0.198,
           0.179,
           0.216,
           12,
           "update, relative L2: 2.1e-08 of 1e-06 allowed",
           {{"optimizer.fused", "true"}},
           {0.181, 0.203, 0.197, 0.211, 0.178, 0.199, 0.202, 0.188, 0.215, 0.196, 0.204, 0.193}},
          {"channels-last",
           "Images and weights with channels innermost.",
           "kept",
           "22.4 % faster: 95 % interval 19.0 % to 25.7 %, over 12 pairs.",
           0.224,
           0.190,
           0.257,
           12,
           "gradients, relative L2: 3.1e-07 of 1e-02 allowed",
           {{"model.memory_format", "\"channels_last\""}}},
          {"bf16",
           "Forward and backward in bfloat16 where that is safe.",
           "refused",
           "slower: 15.9 % slower, 95 % interval 13.2 % to 18.4 %.",
           -0.159,
           -0.184,
           -0.132,
           6,
           "",
           {{"train.precision", "\"bf16\""}}},
          {"num_workers 2",
           "Two threads decode and augment.",
           "inconclusive",
           "budget: 0.8 % faster, but the interval holds no gain after 14 pairs.",
           0.008,
           -0.011,
           0.027,
           14,
           "same bits after 5 steps",
           {{"data.num_workers", "2"}}},
          {"arena for tensors",
           "Tensors in memory that stays mapped from step to step.",
           "kept",
           "3.9 % faster: 95 % interval 2.4 % to 5.5 %, over 18 pairs.",
           0.039,
           0.024,
           0.055,
           18,
           "same bits after 5 steps",
           {{"compute.allocator", "\"arena\""}}},
          {"prefetch depth 8",
           "Eight batches wait ready.",
           "failed",
           "error: memory: 8 batches of 38.5 MB do not fit the limit of 256 MB.",
           {},
           {},
           {},
           0,
           "",
           {{"data.prefetch_batches", "8"}}}};
}

// 60 moments of a run whose batches fill up and whose gradients come and go; activations were not counted.
inline MemoryTimeline sample_memory() {
  constexpr std::int64_t kMegabyte = 1'000'000;
  MemoryTimeline memory;
  memory.classes = {{"parameters", {}}, {"gradients", {}}, {"optimizer", {}}, {"batches", {}}, {"cache", {}}};
  for (std::int64_t i = 0; i < 60; ++i) {
    memory.at_ns.push_back(1'000'000'000 + i * 500'000'000);
    const std::int64_t parameters = 45 * kMegabyte, gradients = i % 3 == 0 ? 0 : parameters, optimizer = 2 * parameters,
                       batches = std::min<std::int64_t>(i, 10) * 8 * kMegabyte,
                       cache = std::min<std::int64_t>(i, 40) * 5 * kMegabyte;
    const std::int64_t held = parameters + gradients + optimizer + batches + cache;
    memory.resident.push_back(held + 180 * kMegabyte + (i % 3 == 1 ? 120 * kMegabyte : 0));
    const std::int64_t bytes[] = {parameters, gradients, optimizer, batches, cache};
    for (std::size_t k = 0; k < memory.classes.size(); ++k) memory.classes[k].bytes.push_back(bytes[k]);
  }
  return memory;
}

inline ResourceVerdict sample_verdict() {
  ResourceVerdict verdict;
  verdict.first = Resource::decode;
  verdict.confidence = 0.97;
  verdict.confirmed = true;
  verdict.sentence = "Decoding images runs out first.";
  verdict.losses = {
      {Resource::decode,
       0.0031,
       0.45,
       0.41,
       0.49,
       0.97,
       true,
       "a step waits 3.1 ms for images to be decoded, 31 % of it",
       "Load with more workers.",
       {"data.num_workers"}},
      {Resource::optimizer, 0.0009, 0.1, 0.08, 0.12, 0.8, false, "the update takes 0.9 ms", "Fuse it.", {}}};
  verdict.peak_share = 0.62;
  verdict.unavailable = {"Ranks cannot be compared: there is one."};
  return verdict;
}

inline Report::LoadingPlan sample_loading_plan() {
  return {{{"read", 240'000, 784, 0}, {"pad, crop, flip, to float, into the batch", 240'000, 784, 3136}},
          7,
          3136,
          4704,
          13'200,
          25'600,
          {{{"Pad", "CenterCrop"}, false, "Pad runs by itself: no pass takes it over"}, {{"ToDtype"}, true, ""}}};
}

inline Report sample_report() {
  Report report;
  report.title = "fashion_mnist";
  report.verdict = "1.52 times as fast, numerically the same.";
  report.positive = true;
  report.speedup = 1.52;
  report.speedup_low = 1.47;
  report.speedup_high = 1.58;
  report.speedup_pairs = 24;
  report.baseline_samples_per_second = 3104.2;
  report.best_samples_per_second = 4718.6;
  report.before = sample_split(0.062, 0.021, 0.512, 0.734, 0.306, 0.015);
  report.after = sample_split(0.011, 0.022, 0.391, 0.583, 0.066, 0.012);
  report.diagnosis =
      "compute-bound: 75 % of a step is forward and backward, 19 % the optimizer; without loading it runs 3.4 % faster "
      "(measured; predicted 3.9 %)";
  report.findings = {
      {"cores_oversubscribed",
       "Compute threads (2) and loader workers (1) share 2 cores; loading takes about 2.1 % of a step from "
       "compute.",
       "Divide the cores between loading and compute (data.num_workers, compute.intra_op_threads), or make a sample "
       "cheaper."}};
  report.resources = sample_verdict();
  report.changes = sample_changes();
  report.val_accuracy = 0.9203;
  report.val_loss = 0.2431;
  report.choice = "The checkpoint of epoch 4 is the result: the best by val accuracy, 0.9203.";
  report.test_accuracy = 0.9142;
  report.test_loss = 0.2417;
  report.curves = {{"Val accuracy", "", {1, 2, 3, 4}, {0.8412, 0.8791, 0.9034, 0.9203}},
                   {"Training loss",
                    "",
                    {100, 200, 300, 400, 500, 600, 700, 800},
                    {1.412, 0.803, 0.611, 0.502, 0.447, 0.391, 0.366, 0.341}}};
  report.speedup_ratios = {1.51, 1.49, 1.55, 1.47, 1.53, 1.58, 1.50, 1.52, 1.54, 1.46, 1.52, 1.61,
                           1.48, 1.53, 1.51, 1.56, 1.44, 1.52, 1.55, 1.49, 1.53, 1.50, 1.52, 1.57};
  show_trace(report, sample_trace(), "Now");
  report.wall = split_wall(sample_trace());
  report.waits = waits_in(sample_trace());
  report.memory = sample_memory();
  report.cache = Report::Cache{"decoded", "", 199'200, 40'800, 200'000'000};
  report.stages = {{"read", 240'000, 1.9, 0, 4.2, 188'160'000, 0, false},
                   {"decode", 0, 0, 0, 0, 0, 0, false},
                   {"transform", 240'000, 7.3, 0, 0, 752'640'000, 0, true},
                   {"consume", 240'000, 51.2, 3.4, 0, 752'640'000, 1.7, false}};
  report.latency = Report::Latency{0.00031, 0.0124, 0.0473};
  report.course = Report::Course{4000, {{"fused optimizer", {{101, 500}, {1501, 4000}}}, {"bf16", {{601, 700}}}}};
  report.decisions = {{37, 2.1, "data.num_workers", "1", "3", "a batch takes the threads 33 ms", 2840, 2815.5, true},
                      {75, 4.4, "data.num_workers", "3", "1", "rolled back", 2815.5, std::nullopt, false}};
  report.loading_plan = sample_loading_plan();
  report.loading_advice =
      LoadingAdvice{{7.9e-6, 0, 30.4e-6, 0.1e-6, 2e-6},
                    {{"without pad", "data.transform.pad = 0", "off", "on",
                      "3,512 samples/s predicted, now 3,104 samples/s", true, 3512.0},
                     {"augment on the GPU", "", "gpu", "cpu", "no CUDA device (no driver)", false, {}}}};
  report.environment = {{"Processor", "AMD EPYC 7B13, 2 cores"},
                        {"Memory", "8.0 GB (limit of the container)"},
                        {"System", "Debian 12, Linux 6.1"},
                        {"Headrace", "0.1.0, commit a1b2c3d, g++ 12.2.0, release"},
                        {"LibTorch", "2.11.0"}};
  report.settings = {{"optimizer.fused", "true", "true", ""},
                     {"compute.allocator", "\"arena\"", "\"arena\"", ""},
                     {"compute.wait_policy", "\"active\"", "\"passive\"",
                      "libgomp reads it when it is loaded; set it before the process starts."}};
  report.command = "headrace tune examples/fashion_mnist.toml --seed 1";
  report.written = "2026-11-20 15:30:00 UTC";
  return report;
}

// `text` in every field that holds text. Numbers, where there are any, are those of sample_report().
inline Report report_of(const std::string& text) {
  Report report = sample_report();
  report.title = report.note = report.verdict = report.diagnosis = report.command = report.written = text;
  for (Finding& finding : report.findings) finding = {text, text, text};
  report.resources->sentence = text;
  report.resources->unavailable = {text};
  for (ResourceLoss& loss : report.resources->losses) {
    loss.evidence = loss.advice = text;
    loss.keys = {text};
  }
  for (Report::Change& change : report.changes) {
    change.name = change.sentence = change.reason = change.numerics = text;
    change.settings = {{text, text}};
  }
  report.changes.back().verdict = text;
  report.traces.clear();
  show_trace(report, sample_trace_of(text), text);
  show_trace(report, sample_trace_of(text), text);
  report.cache->kind = report.cache->reason = text;
  for (Report::Stage& stage : report.stages) stage.name = text;
  for (Report::Course::Row& row : report.course->rows) row.name = text;
  for (Report::Pass& pass : report.loading_plan->passes) pass.name = text;
  for (Report::TransformStep& step : report.loading_plan->transforms) step.operations = {text}, step.why = text;
  for (Proposal& proposal : report.loading_advice->proposals) {
    proposal.name = proposal.setting = proposal.requested = proposal.applied = proposal.reason = text;
  }
  for (Report::Decision& decision : report.decisions) {
    decision.what = decision.from = decision.to = decision.why = text;
  }
  for (Report::Curve& curve : report.curves) curve.name = curve.unit = text;
  for (MemoryTimeline::Class& counted : report.memory.classes) counted.name = text;
  for (auto& [name, value] : report.environment) name = value = text;
  for (Applied& setting : report.settings) setting = {text, text, text, text};
  return report;
}

}  // namespace headrace
