// What the report says of loading: a table of its stages, one of what the loader changed by itself, and the cache.
#pragma once

#include <headrace/loading_advice.h>
#include <headrace/report.h>

#include <cstdint>
#include <string>

namespace headrace::detail {

std::string loading_html(const Report& report);  // Empty when nothing is known of it.
std::string cache_html(const Report& report);    // Says why it is unavailable, but of a run that tunes itself.
// "Samples are kept decoded. 200,000 of 240,000 samples were found there, 83 %; ...", or why nothing is known.
std::string cache_text(const Report& report);
std::string count_text(std::int64_t count);  // "240,000".
// "Half of the batches came 0.31 ms or more after they were asked for, 5 in 100 ...", or that it is unavailable.
std::string latency_text(const Report& report);
// "1.20 s for input", "0.30 s for room", both, or nothing.
std::string waits_text(const Report::Stage& stage);
// "A sample costs the loader 1.06 ms: read 4 %, decode 70 %, ..."
std::string costs_text(const LoadingCosts& costs);
// "661 kB copied and 1.2 MB touched for a sample; as 9 passes, one for each stage, it would be ..."
std::string plan_text(const Report::LoadingPlan& plan);
std::string transform_text(const Report::TransformStep& step);
// "without pad (data.transform.pad = 0): 1,234 samples/s predicted, ..."
std::string proposal_text(const Proposal& proposal);
// "kept", "rolled back" or "not measured".
const char* outcome_text(const Report::Decision& decision);

}  // namespace headrace::detail
