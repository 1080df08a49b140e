// What a run says about its data: what opening found odd, and the samples that could not be read.
#pragma once

#include <headrace/loading_advice.h>
#include <headrace/report.h>
#include <headrace/time_split.h>

#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "app/cli/console.h"
#include "engine/assembly/run_settings.h"
#include "engine/assembly/training.h"

namespace headrace {

// Of switches that are not applied, those of the process first, and of the data: one warning each; and that a
// TorchScript module runs code. Nothing when all is as it should be.
void tell_remarks(Console& console, const RunSettings& settings, const Training& training);
// Requested and applied of all of them, those of the process last.
std::vector<Applied> all_applied(std::vector<Applied> of_training, const RunSettings& settings);
// How many samples data.on_corrupt replaced or zeroed so far, and the first of them by name and reason.
void tell_corrupt_samples(Console& console, const Training& training);
// {"on_corrupt": "replace", "times": 4, "samples": [{"name", "reason"}]}, all splits together.
nlohmann::ordered_json corrupt_samples_json(const Training& training);

// Stages of loading the training data, the passes over a sample, and what the loader changed by itself.
void show_loading(Report& report, const Training& training);
// Of steps that were measured. Costs a second where there are optional transforms.
LoadingAdvice advise_loading(const Training& training, const Machine& machine, const TimeSplit& split,
                             std::int64_t samples_per_step);
// {"num_workers", "prefetch_batches", "cpu_share", "cache": {...}, "stages": [...], "latency": {"p50_s", "p95_s",
// "p99_s"}, "plan", "decisions": [...]}; seconds of all threads added up, but of "latency".
nlohmann::ordered_json loading_json(const Training& training);

}  // namespace headrace
