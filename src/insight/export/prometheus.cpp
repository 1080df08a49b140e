#include "insight/export/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>

#include "core/base/fail.h"

namespace headrace {
namespace {

// [a-zA-Z0-9_] of a name or label; it begins with a letter already, or gets an underscore.
std::string identifier(std::string text) {
  for (char& letter : text) {
    const bool is_allowed =
        (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9');
    if (!is_allowed) letter = '_';
  }
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) text.insert(text.begin(), '_');
  return text;
}

std::string with_end(const std::string& name, const std::string& end) {
  return name.ends_with(end) ? name : name + end;
}

std::string family_name(const Metric& metric) {
  std::string name = "headrace_" + identifier(metric.name);
  if (!metric.unit.empty()) name = with_end(name, '_' + identifier(metric.unit));
  return metric.kind == MetricKind::counter ? with_end(name, "_total") : name;
}

std::string escaped(const std::string& text, bool is_label) {
  std::string out;
  for (const char letter : text) {
    if (letter == '\\') {
      out += "\\\\";
    } else if (letter == '\n') {
      out += "\\n";
    } else if (letter == '"' && is_label) {
      out += "\\\"";
    } else {
      out += letter;
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

const char* type_name(MetricKind kind) {
  switch (kind) {
    case MetricKind::gauge:
      return "gauge";
    case MetricKind::counter:
      return "counter";
    case MetricKind::histogram:
      return "histogram";
  }
  return "";
}

bool is_available(const Metric& metric) {
  return metric.kind == MetricKind::histogram ? metric.histogram.has_value() : metric.value.has_value();
}

// "{gpu=\"0\",le=\"0.5\"}", or nothing without labels.
std::string label_set(const std::vector<MetricLabel>& labels, const std::string& bound = {}) {
  std::string text;
  for (const MetricLabel& label : labels) {
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", identifier(label.name), escaped(label.value, true));
  }
  if (!bound.empty()) text += fmt::format("{}le=\"{}\"", text.empty() ? "" : ",", bound);
  return text.empty() ? text : '{' + text + '}';
}

void add_histogram(std::string& text, const std::string& name, const Metric& metric) {
  const HistogramBuckets& buckets = *metric.histogram;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < buckets.counts.size(); ++i) {
    below += buckets.counts[i];
    const std::string bound = i < buckets.upper_bounds.size() ? number(buckets.upper_bounds[i]) : "+Inf";
    fmt::format_to(std::back_inserter(text), "{}_bucket{} {}\n", name, label_set(metric.labels, bound), below);
  }
  fmt::format_to(std::back_inserter(text), "{}_sum{} {}\n{}_count{} {}\n", name, label_set(metric.labels),
                 number(buckets.sum), name, label_set(metric.labels), below);
}

}  // namespace

std::string prometheus_text(std::span<const Metric> metrics) {
  std::string text;
  std::map<std::string, std::string> names;  // What was given, by what it became.
  for (const MetricFamily& family : metric_families(metrics)) {
    const Metric& first = *family.points.front();
    const std::string name = family_name(first);
    const auto [other, is_new] = names.try_emplace(name, first.name);
    if (!is_new) {
      fail(ErrorCode::invalid_argument, "prometheus: {} and {} would both be {}", other->second, first.name, name);
    }
    if (std::none_of(family.points.begin(), family.points.end(),
                     [](const Metric* point) { return is_available(*point); })) {
      fmt::format_to(std::back_inserter(text), "# {}: unavailable\n", name);
      continue;
    }
    if (!first.help.empty()) {
      fmt::format_to(std::back_inserter(text), "# HELP {} {}\n", name, escaped(first.help, false));
    }
    fmt::format_to(std::back_inserter(text), "# TYPE {} {}\n", name, type_name(first.kind));
    for (const Metric* point : family.points) {
      if (!is_available(*point)) continue;
      if (point->kind == MetricKind::histogram) {
        add_histogram(text, name, *point);
      } else {
        fmt::format_to(std::back_inserter(text), "{}{} {}\n", name, label_set(point->labels), number(*point->value));
      }
    }
  }
  return text;
}

}  // namespace headrace
