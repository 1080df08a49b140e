#include "insight/export/metric_log.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "insight/export/detail/quote.h"

namespace headrace {
namespace {

constexpr std::string_view kCsvHeader = "wall_time,step,metric,labels,value\n";
constexpr std::string_view kJsonBegin = "{\"version\":1,";

// Every log of this form and version begins so.
std::string_view begin_of(MetricLogForm form) {
  return form == MetricLogForm::csv ? kCsvHeader : kJsonBegin;
}

// Seconds with nine decimals, without a double between.
std::string wall_time(std::int64_t ns) {
  const bool is_negative = ns < 0;
  const std::uint64_t size = is_negative ? ~static_cast<std::uint64_t>(ns) + 1 : static_cast<std::uint64_t>(ns);
  return fmt::format("{}{}.{:09}", is_negative ? "-" : "", size / 1'000'000'000, size % 1'000'000'000);
}

std::string csv_number(double value) {
  if (std::isnan(value)) return "nan";
  return fmt::format("{}", value);
}

std::string json_numbers(const std::vector<double>& values) {
  std::string list;
  for (const double value : values) list += (list.empty() ? "" : ",") + detail::json_number(value);
  return '[' + list + ']';
}

}  // namespace

MetricLog::MetricLog(const std::filesystem::path& path, MetricLogForm form)
    : form_(form), file_(AppendFile::continue_lines(path, begin_of(form))) {
  if (file_.size() > 0 || form != MetricLogForm::csv) return;
  file_.add(kCsvHeader);
  flush();  // Lost with the first rows on a full disk, it would leave a file that no later writer knows.
}

void MetricLog::add(const Metric& metric, MetricMoment moment) {
  check_metric(metric);
  if (form_ == MetricLogForm::csv) {
    add_csv(metric, moment);
  } else {
    add_json(metric, moment);
  }
}

void MetricLog::add_csv(const Metric& metric, MetricMoment moment) {
  std::string labels;
  for (const MetricLabel& label : metric.labels) {
    labels += fmt::format("{}{}={}", labels.empty() ? "" : ";", label.name, label.value);
  }
  const auto add_row = [&](const std::string& name, const std::string& value) {
    file_.add(fmt::format("{},{},{},{},{}\n", wall_time(moment.wall_ns), moment.step, detail::csv_field(name),
                          detail::csv_field(labels), value));
  };
  if (!metric.histogram) return add_row(metric.name, metric.value ? csv_number(*metric.value) : "");
  add_row(metric.name + ".count", fmt::to_string(metric.histogram->count()));
  add_row(metric.name + ".sum", csv_number(metric.histogram->sum));
  add_row(metric.name + ".min", csv_number(metric.histogram->min));
  add_row(metric.name + ".max", csv_number(metric.histogram->max));
}

void MetricLog::add_json(const Metric& metric, MetricMoment moment) {
  std::string labels;
  for (const MetricLabel& label : metric.labels) {
    labels += fmt::format("{}{}:{}", labels.empty() ? "" : ",", detail::json_string(label.name),
                          detail::json_string(label.value));
  }
  std::string value = "\"value\":null";
  if (metric.histogram) {
    const HistogramBuckets& buckets = *metric.histogram;
    value = fmt::format("\"histogram\":{{\"upper_bounds\":{},\"counts\":[{}],\"sum\":{},\"min\":{},\"max\":{}}}",
                        json_numbers(buckets.upper_bounds), fmt::join(buckets.counts, ","),
                        detail::json_number(buckets.sum), detail::json_number(buckets.min),
                        detail::json_number(buckets.max));
  } else if (metric.value) {
    value = "\"value\":" + detail::json_number(*metric.value);
    if (!std::isfinite(*metric.value)) value += ",\"text\":\"" + csv_number(*metric.value) + '"';
  }
  file_.add(fmt::format("{}\"wall_time\":{},\"step\":{},\"metric\":{},\"labels\":{{{}}},{}}}\n", kJsonBegin,
                        wall_time(moment.wall_ns), moment.step, detail::json_string(metric.name), labels, value));
}

void MetricLog::flush() {
  file_.flush();
}

void MetricLog::sync() {
  file_.sync();
}

}  // namespace headrace
