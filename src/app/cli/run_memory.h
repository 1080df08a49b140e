// What the memory of a run tells. Pure functions of its files.
#pragma once

#include <headrace/diagnosis.h>

#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "app/cli/run_contents.h"

namespace headrace {

// memory_growth: it grew to the end of a run that did one thing over and over, for a minute at least.
// memory_nearly_full: its peak is above kMemoryNearlyFull of what it may take. The advice names what would give memory
// back, the most first, by the bytes that were counted at the peak.
std::vector<Finding> memory_findings(const RunContents& run);

// {"cpu_memory_trend": {"trend", "bytes_per_s", "windows"}, "gpu_memory_trend": "unavailable: ..."}; trend is that of
// core/memory/trend.h. A text where the run has no memory over time.
nlohmann::ordered_json memory_trends(const RunContents& run);

}  // namespace headrace
