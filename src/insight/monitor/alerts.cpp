#include <headrace/alerts.h>
#include <headrace/error.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/memory/trend.h"

namespace headrace {
namespace {

constexpr std::size_t kTrendValuesMax = 4096;  // Or kTrendWindowsMax windows; of them the older half is forgotten.
constexpr std::size_t kTrendWindowsMax = 32;   // Half of them are enough for memory_trend().
constexpr std::int64_t kWindowMax = 100'000;
constexpr double kClearDistance = 0.1;  // Of the limit.

bool is_good_when_larger(AlertKind kind) {
  return kind == AlertKind::below || kind == AlertKind::drop;
}

double distance_to_clear(const AlertRule& rule) {
  return kClearDistance * std::abs(rule.limit);
}

AlertRule checked(AlertRule rule) {
  const auto refuse = [&](const char* field, const std::string& wanted) {
    fail(ErrorCode::invalid_argument, "monitor: alert \"{}\": {}: wanted {}", rule.name, field, wanted);
  };
  if (rule.name.empty()) refuse("name", "a text");
  if (rule.metric.empty()) refuse("metric", "the name of a metric");
  if (!std::isfinite(rule.limit)) refuse("limit", fmt::format("a finite number, found {}", rule.limit));
  if (rule.kind == AlertKind::drop && !(rule.limit > 0 && rule.limit <= 1)) {
    refuse("limit", fmt::format("a ratio above 0 and at most 1, found {}", rule.limit));
  }
  if (rule.count_min < 1) refuse("count_min", fmt::format("at least 1, found {}", rule.count_min));
  if (rule.window < 0 || rule.window > kWindowMax) {
    refuse("window", fmt::format("0 to {}, found {}", kWindowMax, rule.window));
  }
  if (rule.window == 0) rule.window = rule.kind == AlertKind::increasing ? 20 : 10;
  if (!rule.clear) {
    rule.clear =
        is_good_when_larger(rule.kind) ? rule.limit + distance_to_clear(rule) : rule.limit - distance_to_clear(rule);
  }
  if (!std::isfinite(*rule.clear) ||
      (is_good_when_larger(rule.kind) ? *rule.clear < rule.limit : *rule.clear > rule.limit)) {
    refuse("clear", fmt::format("a number not {} the limit {}, found {}",
                                is_good_when_larger(rule.kind) ? "below" : "above", rule.limit, *rule.clear));
  }
  return rule;
}

}  // namespace

const char* to_string(AlertKind kind) noexcept {
  switch (kind) {
    case AlertKind::below:
      return "below";
    case AlertKind::above:
      return "above";
    case AlertKind::drop:
      return "drop";
    case AlertKind::increasing:
      return "increasing";
  }
  return "below";
}

AlertKind alert_kind_of(std::string_view text) {
  for (const AlertKind kind : {AlertKind::below, AlertKind::above, AlertKind::drop, AlertKind::increasing}) {
    if (text == to_string(kind)) return kind;
  }
  fail(ErrorCode::invalid_argument, "monitor: alert: kind: wanted below, above, drop or increasing, found \"{}\"",
       text);
}

struct AlertWatch::Impl {
  explicit Impl(AlertRule given) : rule(checked(std::move(given))) {}

  // What is compared with the limit, as far as the values are enough for it.
  std::optional<double> compared(double value) {
    ++count;
    if (rule.kind == AlertKind::drop) return ratio(value);
    if (rule.kind == AlertKind::increasing) return growth(value);
    return value;
  }

  std::optional<double> ratio(double value) {
    sum += value;
    last.push_back(value);
    if (std::ssize(last) > rule.window) last.pop_front();
    if (count <= rule.window) return std::nullopt;  // All are the last ones.
    double last_sum = 0;
    for (const double one : last) last_sum += one;
    const double mean = sum / static_cast<double>(count);
    if (!(mean > 0)) return std::nullopt;
    return last_sum / static_cast<double>(rule.window) / mean;
  }

  // Judged once a window: until then nothing new is known.
  std::optional<double> growth(double value) {
    if (values.size() == std::max(kTrendValuesMax, kTrendWindowsMax * static_cast<std::size_t>(rule.window))) {
      values.erase(values.begin(), values.begin() + std::ssize(values) / 2);
    }
    values.push_back(static_cast<std::int64_t>(value));
    if (count % rule.window != 0) return std::nullopt;
    trend = memory_trend(values, rule.window);
    if (trend.trend == Trend::insufficient_data) return std::nullopt;
    return trend.bytes_per_value;
  }

  bool is_bad(double value) const {
    if (rule.kind == AlertKind::increasing) return trend.trend == Trend::increasing;
    return is_good_when_larger(rule.kind) ? value < rule.limit : value > rule.limit;
  }
  bool is_clear(double value) const {
    if (rule.kind == AlertKind::increasing) return trend.trend != Trend::increasing;
    return is_good_when_larger(rule.kind) ? value >= *rule.clear : value <= *rule.clear;
  }
  bool has_enough(std::optional<double> counted) const {
    if (rule.counted_by.empty()) return count >= rule.count_min;
    return counted && *counted >= static_cast<double>(rule.count_min);
  }

  std::string what_is(double value) const {
    switch (rule.kind) {
      case AlertKind::below:
      case AlertKind::above:
        return fmt::format("{} is {:.6g}, {} {:.6g}", rule.metric, value,
                           is_raised ? to_string(rule.kind) : "back from", rule.limit);
      case AlertKind::drop:
        return fmt::format("the last {} values of {} are {:.3g} of the mean of all, {} {:.3g}", rule.window,
                           rule.metric, value, is_raised ? "below" : "back from", rule.limit);
      case AlertKind::increasing:
        break;
    }
    return is_raised ? fmt::format("{} grows by {:.3g} MB a value", rule.metric, value * 1e-6)
                     : fmt::format("{} grows no more", rule.metric);
  }

  std::optional<Alert> add(double value, std::int64_t step, std::optional<double> counted) {
    if (!std::isfinite(value)) return std::nullopt;
    if (rule.kind == AlertKind::increasing && !(value >= 0 && value < 0x1p62)) return std::nullopt;  // Not bytes.
    const std::optional<double> found = compared(value);
    if (!found || !has_enough(counted)) return std::nullopt;
    if (is_raised ? !is_clear(*found) : !is_bad(*found)) return std::nullopt;
    is_raised = !is_raised;
    std::string sentence = fmt::format("{}: {}", rule.name, what_is(*found));
    if (step >= 0) sentence += fmt::format(" (step {})", step);
    return Alert{rule.name, rule.metric, rule.kind, is_raised, *found, rule.limit, step, std::move(sentence)};
  }

  const AlertRule rule;
  bool is_raised = false;
  std::int64_t count = 0;
  double sum = 0;                    // Of all values; drop alone.
  std::deque<double> last;           // At most `window`; drop alone.
  std::vector<std::int64_t> values;  // increasing alone.
  MemoryTrend trend;
};

AlertWatch::AlertWatch(AlertRule rule) : impl_(std::make_unique<Impl>(std::move(rule))) {}
AlertWatch::~AlertWatch() = default;
AlertWatch::AlertWatch(AlertWatch&&) noexcept = default;

const AlertRule& AlertWatch::rule() const {
  return impl_->rule;
}

std::optional<Alert> AlertWatch::add(double value, std::int64_t step, std::optional<double> counted) {
  return impl_->add(value, step, counted);
}

}  // namespace headrace
