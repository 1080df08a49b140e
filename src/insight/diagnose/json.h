// Insight's values as JSON documents, for those who build larger documents of them.
#pragma once

#include <headrace/diagnosis.h>
#include <headrace/loading_advice.h>
#include <headrace/profile_summary.h>
#include <headrace/resource_verdict.h>
#include <headrace/time_split.h>
#include <headrace/trace.h>
#include <headrace/wall_split.h>

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

nlohmann::ordered_json to_json(const TimeSplit& split);
nlohmann::ordered_json to_json(const WallSplit& split);  // As its json_text(), and below.
nlohmann::ordered_json to_json(const Waits& waits);

// One value a step under names that other profilers use: training_speed (samples/s), memory_usage (GB, 10^9 bytes),
// data_loading_time (data wait and transfer), forward_pass_time, backward_pass_time, optimizer_time (seconds); each is
// {"unit", "values"}. `memory_bytes` holds one value a step, or is empty: "values" is null then, not 0.
nlohmann::ordered_json metric_series(const TimeSplit& split, std::int64_t samples_per_step,
                                     const std::vector<std::int64_t>& memory_bytes = {});
nlohmann::ordered_json to_json(const ProfileSummary& summary);       // total_operations, total_duration, operations.
nlohmann::ordered_json to_json(const DurationHistogram& durations);  // As its json_text().

// What memory was for, over time: {"unit", "peak": {"at_s", "bytes"}, "at_s", "resident", "classes": {name:
// {"at_peak", "mean", "last", "values"}}}, in bytes and in seconds since the first moment. Of parameters, gradients,
// optimizer, activations, batches, cache those that nobody counted are null; "other" is what is resident beyond the
// counted ones. Of many moments 256 are left, each the one with most resident of its share of the time. null without
// moments: unavailable.
nlohmann::ordered_json to_json(const MemoryTimeline& timeline);
nlohmann::ordered_json to_json(const std::vector<Finding>& findings);  // Each {"code", "sentence", "advice"}.
nlohmann::ordered_json to_json(const ResourceVerdict& verdict);
nlohmann::ordered_json to_json(const Diagnosis& diagnosis);
nlohmann::ordered_json to_json(const LoadingAdvice& advice);  // "seconds_a_sample" by part, "proposals".

}  // namespace headrace
