// Writes what our exporters make; trace_exports_test.py and readers/export_readers_test.py read it with others'
// readers.
//   export_probe trace IN FORM OUT [SOURCE TARGET]
//     IN: a trace.json of ours. Flows go from the spans named SOURCE to those named TARGET.
//   export_probe metrics IN FOLDER
//     IN: a JSON list of steps, each a list of metrics. In FOLDER: an event file, metrics.csv and metrics.jsonl of all
//     steps, metrics.prom and metrics.otlp.json of the last one.
//   export_probe endless FOLDER
//     An event file of scalars "endless", value and step 0, 1, 2, ..., until it is killed.
#include <headrace/trace_export.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/base/run_program.h"
#include "insight/export/metric_log.h"
#include "insight/export/otlp.h"
#include "insight/export/prometheus.h"
#include "insight/export/tensorboard.h"

namespace {

using namespace headrace;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

constexpr std::int64_t kWallNs = 1'700'000'000'000'000'000;  // Of step 0; a second a step.

void trace(const Words& words) {
  const TraceRecord record = read_chrome_trace(words.at(0));
  std::vector<TraceFlow> flows;
  if (words.size() > 3) flows = flows_by_value(record, words.at(3), words.at(4));
  export_trace(record, words.at(2), trace_form_of(words.at(1)), flows);
}

// "nan", "inf" and "-inf" are texts, as JSON has no such numbers; null: unavailable.
std::optional<double> number(const Json& value) {
  if (value.is_null()) return std::nullopt;
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

Metric metric_of(const Json& given) {
  Metric metric;
  metric.name = given.at("name").get<std::string>();
  metric.help = given.value("help", "");
  metric.unit = given.value("unit", "");
  if (given.value("kind", "gauge") == "counter") metric.kind = MetricKind::counter;
  if (given.contains("labels")) {
    for (const auto& [name, value] : given.at("labels").items())
      metric.labels.push_back({name, value.get<std::string>()});
  }
  if (given.contains("value")) metric.value = number(given.at("value"));
  if (given.contains("histogram")) {
    const Json& buckets = given.at("histogram");
    metric.kind = MetricKind::histogram;
    metric.histogram = HistogramBuckets{buckets.at("upper_bounds").get<std::vector<double>>(),
                                        buckets.at("counts").get<std::vector<std::uint64_t>>(),
                                        buckets.at("sum").get<double>(),
                                        buckets.at("sum_of_squares").get<double>(),
                                        buckets.at("min").get<double>(),
                                        buckets.at("max").get<double>()};
  }
  return metric;
}

void metrics(const Words& words) {
  const std::filesystem::path folder = words.at(1);
  TensorBoardWriter events{folder};
  MetricLog csv{folder / "metrics.csv", MetricLogForm::csv};
  MetricLog lines{folder / "metrics.jsonl", MetricLogForm::jsonl};
  MetricMoment moment{kWallNs, 0};
  const Json steps = Json::parse(read_file(words.at(0), 1 << 24));
  for (const Json& step : steps) {
    std::vector<Metric> read;
    for (const Json& given : step) read.push_back(metric_of(given));
    for (const Metric& metric : read) {
      events.add(metric, moment);
      csv.add(metric, moment);
      lines.add(metric, moment);
    }
    write_file(folder / "metrics.prom", prometheus_text(read));
    write_file(folder / "metrics.otlp.json", otlp_metrics_json(read, {"export_probe", {}, kWallNs}, moment.wall_ns));
    moment.wall_ns += 1'000'000'000;
    ++moment.step;
  }
}

void endless(const Words& words) {
  TensorBoardWriter events{words.at(0)};
  for (std::int64_t step = 0;; ++step) {
    events.add_scalar("endless", static_cast<double>(step), {kWallNs, step});
    if (step % 97 == 0) events.flush();
  }
}

void run(const Words& words) {
  const std::map<std::string, void (*)(const Words&)> commands{
      {"trace", trace}, {"metrics", metrics}, {"endless", endless}};
  commands.at(words.at(0))(Words(words.begin() + 1, words.end()));
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "export_probe");
}
