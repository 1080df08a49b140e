// Prometheus's text exposition format, version 0.0.4.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "insight/export/metric.h"

namespace headrace {

inline constexpr std::string_view kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";

// What a scrape gets: for each name HELP, TYPE and one sample a set of labels; a histogram as cumulative _bucket
// samples, _sum and _count. "train.step_duration" in seconds becomes headrace_train_step_duration_seconds, a counter's
// name ends with _total; characters that a name may not have become '_'. A point that is unavailable is left out, and a
// name all of whose points are stays as a comment that says so. Error{invalid_argument}: metric_families', or two names
// that become one. A pure function; any thread.
std::string prometheus_text(std::span<const Metric> metrics);

}  // namespace headrace
