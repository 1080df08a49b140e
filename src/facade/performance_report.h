// The summary of a PerformanceMonitor as a text.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace headrace::facade {

// Some lines, the same that Python's log_performance_report() has of the same summary.
std::string performance_report(const nlohmann::ordered_json& summary);

}  // namespace headrace::facade
