// Metrics over time as a file of lines: CSV or JSON lines.
#pragma once

#include <filesystem>
#include <string>

#include "insight/export/append_file.h"
#include "insight/export/metric.h"

namespace headrace {

enum class MetricLogForm { csv, jsonl };

// A log that later processes go on with. One line a point, so that new metrics need no new column:
//
//   wall_time,step,metric,labels,value          CSV; wall_time in seconds since 1970 with nine decimals, labels
//   "gpu=0;rank=1"
//   {"version":1,"wall_time":...,"step":...,"metric":"gpu.power","labels":{"gpu":"0"},"value":61.5}
//
// What is unavailable has an empty value, or null. A value that is not finite is nan, inf or -inf in CSV; in JSON it is
// null and a key "text" tells which. A histogram is four CSV rows, NAME.count, .sum, .min and .max, and in JSON
// "histogram":{"upper_bounds":[...],"counts":[...],"sum":...,"min":...,"max":...} in place of the value.
//
// Lines are collected up to 64 KiB; a killed process leaves whole lines and at most a cut one, which the next writer
// takes off (AppendFile). For one thread at a time.
class MetricLog {
 public:
  // Error{io}: the file cannot be opened or has another writer. Error{corrupt_data}: it is no such log, or of another
  // version.
  MetricLog(const std::filesystem::path& path, MetricLogForm form);

  // Error{invalid_argument}: check_metric's.
  void add(const Metric& metric, MetricMoment moment);
  void flush();  // AppendFile's: Error{io}, after which writing goes on.
  void sync();

 private:
  void add_csv(const Metric& metric, MetricMoment moment);
  void add_json(const Metric& metric, MetricMoment moment);

  const MetricLogForm form_;
  AppendFile file_;
};

}  // namespace headrace
