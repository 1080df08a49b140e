#include "insight/compare/run_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/fail.h"
#include "core/base/middle.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

// A percentile of fewer steps is the slowest of them.
constexpr std::size_t kStepsOfP95 = 20, kStepsOfP99 = 100;
constexpr std::array kStages{"data_wait", "transfer", "forward", "backward", "optimizer", "other"};
constexpr std::array kMachine{"CPU", "Cores", "GPU"};

constexpr std::size_t kShownMax = 60;

// For a message. Objects and arrays may be nested as deep as somebody likes, and dump() goes down by calls.
std::string shown(const Json& value) {
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  return value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace).substr(0, kShownMax);
}

double finite(const Json& value, const std::string& place) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  fail(ErrorCode::corrupt_data, "compare: {} is {}; wanted a finite number", place, shown(value));
}

double positive(const Json& value, const std::string& place) {
  const double number = finite(value, place);
  if (number > 0) return number;
  fail(ErrorCode::corrupt_data, "compare: {} is {}; wanted a number above 0", place, number);
}

void add_step_times(std::vector<double> step_s, std::map<std::string, double>& metrics) {
  if (step_s.empty()) return;
  std::sort(step_s.begin(), step_s.end());
  metrics["step_p50_s"] = percentile_of(step_s, 0.50);
  if (step_s.size() >= kStepsOfP95) metrics["step_p95_s"] = percentile_of(step_s, 0.95);
  if (step_s.size() >= kStepsOfP99) metrics["step_p99_s"] = percentile_of(step_s, 0.99);
}

// Sums of finite numbers need not be.
void check_finite(const std::map<std::string, double>& figures, const std::string& source) {
  for (const auto& [name, value] : figures) {
    if (!std::isfinite(value)) fail(ErrorCode::corrupt_data, "compare: {}: {} comes to {}", source, name, value);
  }
}

// The lines of a file, one after the other, and what they come to.
class Lines {
 public:
  void add(const Json& line, const std::string& place) {
    if (line.contains("metric") && line.contains("value") && line["metric"].is_string()) {
      add_value(line["metric"].get<std::string>(), line["value"], place);
      return;
    }
    for (const auto& [key, value] : line.items()) add_value(key, value, place + ", " + key);
    if (line.contains("samples") && line.contains("step_s")) {
      samples_ += positive(line["samples"], place + ", samples");
      sampled_s_ += positive(line["step_s"], place + ", step_s");
    }
  }

  RunFigures figures(const std::string& source) const {
    RunFigures figures;
    add_step_times(step_s_, figures.metrics);
    if (sampled_s_ > 0) figures.metrics["samples_per_s"] = samples_ / sampled_s_;
    for (const auto& [name, sum] : sums_) figures.metrics[name] = sum.mean();
    for (const auto& [name, sum] : stages_) figures.stage_s[name] = sum.mean();
    figures.outputs = outputs_;
    check_finite(figures.metrics, source);
    check_finite(figures.stage_s, source);
    return figures;
  }

 private:
  struct Sum {
    double total = 0;
    double count = 0;
    double mean() const { return total / count; }
    void add(double value) {
      total += value;
      ++count;
    }
  };

  void add_value(const std::string& key, const Json& value, const std::string& place) {
    static const std::set<std::string> no_metrics{"step", "epoch", "version", "wall_time", "samples"};
    if (no_metrics.contains(key) || value.is_string() || value.is_boolean()) return;
    if (key == "step_s") {
      step_s_.push_back(positive(value, place));
    } else if (key == "stages") {
      add_stages(value, place);
    } else if (key == "outputs") {
      add_outputs(value, place);
    } else {
      sums_[key].add(finite(value, place));
    }
  }

  void add_stages(const Json& stages, const std::string& place) {
    if (!stages.is_object()) fail(ErrorCode::corrupt_data, "compare: {} is no object of seconds by name", place);
    for (const auto& [name, seconds] : stages.items()) stages_[name].add(finite(seconds, place + "." + name));
  }

  void add_outputs(const Json& outputs, const std::string& place) {
    if (!outputs.is_array()) {
      outputs_.push_back(finite(outputs, place));
      return;
    }
    for (const Json& value : outputs) outputs_.push_back(finite(value, place));
  }

  std::vector<double> step_s_, outputs_;
  std::map<std::string, Sum> sums_, stages_;
  double samples_ = 0, sampled_s_ = 0;
};

const Json& member(const Json& document, const char* key, const std::string& source) {
  if (document.is_object() && document.contains(key)) return document.at(key);
  fail(ErrorCode::corrupt_data, "compare: {} has no {}", source, key);
}

// What nobody could measure is null there.
void add_known(const Json& document, const char* key, const std::string& name, const std::string& source,
               RunFigures& figures) {
  if (!document.is_object() || !document.contains(key) || document[key].is_null()) return;
  figures.metrics[name] = finite(document[key], source + ", " + key);
}

void add_machine(const Json& document, RunFigures& figures) {
  if (!document.contains("environment") || !document["environment"].is_object()) return;
  const Json& environment = document["environment"];
  for (const char* name : kMachine) {
    if (!environment.contains(name) || !environment[name].is_string()) continue;
    figures.machine.emplace_back(name, environment[name].get<std::string>());
  }
}

// Of documents of earlier versions, and of scripts, nobody knows whether there is a cache.
void add_hit_rate(const Json& document, const std::string& source, RunFigures& figures) {
  if (!document.contains("loading") || !document["loading"].is_object()) return;
  const Json& loading = document["loading"];
  if (!loading.contains("cache") || !loading["cache"].is_object()) return;
  const auto count = [&](const char* key) {
    return finite(member(loading["cache"], key, source), source + ", loading.cache." + key);
  };
  const double hits = count("hits"), looked_for = hits + count("misses");
  if (looked_for > 0) {
    figures.metrics["hit_rate"] = hits / looked_for;
  } else {
    figures.not_applicable["hit_rate"] = "looked for no sample in a cache";
  }
}

void add_profile(const Json& document, const std::string& source, RunFigures& figures) {
  const Json& split = member(document, "time_split", source);
  std::vector<double> step_s;
  for (const Json& seconds : member(split, "step_s", source)) step_s.push_back(positive(seconds, source + ", step_s"));
  const double steps = positive(member(split, "steps", source), source + ", steps");
  for (const char* stage : kStages) {
    const std::string key = std::string(stage) + "_s";
    figures.stage_s[stage] = finite(member(split, key.c_str(), source), source + ", " + key) / steps;
  }
  add_step_times(std::move(step_s), figures.metrics);
  add_known(document, "samples_per_second", "samples_per_s", source, figures);
  add_known(document, "peak_memory_bytes", "peak_memory_bytes", source, figures);
}

void add_training(const Json& document, const std::string& source, RunFigures& figures) {
  const Json& training = member(document, "training", source);
  add_known(training, "seconds", "train_s", source, figures);
  const Json& epochs = member(training, "epochs", source);
  if (epochs.is_array() && !epochs.empty()) {
    add_known(epochs.back(), "samples_per_second", "samples_per_s", source, figures);
    add_known(epochs.back(), "loss", "loss", source, figures);
  }
  add_known(document, "val_accuracy", "val_accuracy", source, figures);
  add_known(document, "test_accuracy", "test_accuracy", source, figures);
  if (!document.contains("memory") || !document["memory"].is_object()) return;
  const Json& memory = document["memory"];
  if (memory.contains("peak")) add_known(memory["peak"], "bytes", "peak_memory_bytes", source, figures);
}

}  // namespace

RunFigures figures_of_lines(std::string_view text, const std::string& source) {
  Lines lines;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string place = fmt::format("{}, line {}", source, number);
    if (!object.is_object()) {
      fail(ErrorCode::corrupt_data, "compare: {} is no JSON object (NaN and Infinity are no JSON numbers)", place);
    }
    lines.add(object, place);
  }
  return lines.figures(source);
}

void check_version(const Json& document, const std::string& source) {
  if (document.contains("version") && document["version"] == 1) return;
  fail(ErrorCode::corrupt_data, "compare: {} has version {}, wanted 1", source,
       document.contains("version") ? shown(document["version"]) : "none");
}

RunFigures figures_of_document(const Json& document, const std::string& source) {
  const std::string format = document.is_object() && document.contains("format") && document["format"].is_string()
                                 ? document["format"].get<std::string>()
                                 : "";
  if (format != "headrace-profile" && format != "headrace-train") {
    fail(ErrorCode::corrupt_data, "compare: {} is no result of headrace profile or train", source);
  }
  check_version(document, source);
  RunFigures figures;
  add_machine(document, figures);
  format == "headrace-profile" ? add_profile(document, source, figures) : add_training(document, source, figures);
  add_hit_rate(document, source, figures);
  check_finite(figures.stage_s, source);
  return figures;
}

std::string why_not_compared(const std::string& metric, const RunFigures& old_run, const RunFigures& new_run) {
  for (const auto& [arm, run] : {std::pair{"OLD", &old_run}, std::pair{"NEW", &new_run}}) {
    const auto found = run->not_applicable.find(metric);
    if (found != run->not_applicable.end()) return fmt::format("{} is not compared: {} {}", metric, arm, found->second);
  }
  return "";
}

Json to_json(const RunFigures& figures) {
  Json document{{"metrics", Json::object()}, {"stages", Json::object()}, {"outputs", figures.outputs}};
  document["not_applicable"] = figures.not_applicable;
  for (const auto& [name, value] : figures.metrics) document["metrics"][name] = value;
  for (const auto& [name, seconds] : figures.stage_s) document["stages"][name] = seconds;
  return document;
}

RunFigures figures_from_json(const Json& document, const std::string& source) {
  RunFigures figures;
  for (const auto& [name, value] : member(document, "metrics", source).items()) {
    figures.metrics[name] = finite(value, source + ", " + name);
  }
  for (const auto& [name, seconds] : member(document, "stages", source).items()) {
    figures.stage_s[name] = finite(seconds, source + ", " + name);
  }
  for (const Json& value : member(document, "outputs", source)) {
    figures.outputs.push_back(finite(value, source + ", outputs"));
  }
  if (!document.contains("not_applicable")) return figures;  // Written before there was one.
  for (const auto& [name, why] : document["not_applicable"].items()) {
    if (!why.is_string()) fail(ErrorCode::corrupt_data, "compare: {}, not_applicable.{} is no text", source, name);
    figures.not_applicable[name] = why.get<std::string>();
  }
  return figures;
}

}  // namespace headrace
