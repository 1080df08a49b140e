// Alerts: rules on the metrics of a run that raise once when a limit is crossed, and once more when it is behind them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

enum class AlertKind {
  below,       // Raised by a value below `limit`.
  above,       // Raised by a value above `limit`.
  drop,        // Raised when the mean of the last `window` values is below `limit` x the mean of all.
  increasing,  // Raised when memory_trend() (core/memory/trend.h) calls the values increasing; in bytes.
};
const char* to_string(AlertKind kind) noexcept;
AlertKind alert_kind_of(std::string_view text);  // Error{invalid_argument} names the four.

// A value that equals its limit raises nothing. The defaults of `drop` are those of the finding speed_degraded.
struct AlertRule {
  std::string name;    // Told with the alert: "cache hit rate".
  std::string metric;  // Whose values are judged: "cache.hit_rate".
  AlertKind kind = AlertKind::below;
  double limit = 0;  // Finite; of `drop` above 0 and at most 1; `increasing` has none.
  // Hysteresis: a raised alert is over when the value, or of `drop` the ratio, is at `clear` or on its good side.
  // nullopt: a tenth of the limit away from it. Not on the limit's bad side.
  std::optional<double> clear{};
  // No alert from fewer values; with `counted_by`, from a smaller newest value of that metric ("cache.lookups").
  std::int64_t count_min = 1;
  std::string counted_by{};
  // Values, at most 100,000: 0 is 10 for `drop`, and 20 for `increasing`, the cycle of memory_trend().
  std::int64_t window = 0;
};

struct Alert {
  std::string name, metric;
  AlertKind kind = AlertKind::below;
  bool raised = true;  // false: it is over.
  double value = 0;    // What was compared: the value, the ratio, or of `increasing` bytes a value.
  double limit = 0;
  std::int64_t step = -1;  // -1: of no step.
  std::string sentence;    // "cache hit rate: cache.hit_rate is 0.41, below 0.5 (step 120)"
};

// One rule and what it has seen. For one thread at a time.
class AlertWatch {
 public:
  // Error{invalid_argument} names the field.
  explicit AlertWatch(AlertRule rule);
  ~AlertWatch();
  AlertWatch(AlertWatch&&) noexcept;

  const AlertRule& rule() const;
  // The next value of the rule's metric, and `counted`, the newest value of counted_by, where that is known. What
  // changed, if anything did. A value that is not finite is passed over. Constant time, but of `drop` linear
  // in the window, and of `increasing` once in `window` values quadratic in at most 200 windows.
  std::optional<Alert> add(double value, std::int64_t step = -1, std::optional<double> counted = std::nullopt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
