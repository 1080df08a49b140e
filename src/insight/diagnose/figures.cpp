#include "insight/diagnose/detail/figures.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace headrace::detail {

std::string fixed_text(double value, int decimals) {
  if (!std::isfinite(value)) return "not finite";
  if (std::abs(value) >= 1e12) return fmt::format("{:.3e}", value);  // Nothing real; but no line breaks over it.
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text[0] == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);  // "-0.0" says nothing.
  return text;
}

std::string grouped(double value) {
  std::string text = fixed_text(value, std::abs(value) < 100 ? 1 : 0);
  if (!std::isfinite(value) || std::abs(value) < 100 || std::abs(value) >= 1e12) return text;
  const std::size_t first_digit = text[0] == '-' ? 1 : 0;
  for (std::size_t end = text.size(); end > first_digit + 3;) {
    end -= 3;
    text.insert(end, 1, ',');
  }
  return text;
}

std::string percent_text(double fraction) {
  const double percent = 100 * fraction;
  if (!std::isfinite(percent)) return fixed_text(percent, 0);
  return fixed_text(percent, std::abs(percent) < 9.95 && std::abs(percent) >= 0.05 ? 1 : 0) + " %";
}

std::string gain_text(double fraction) {
  std::string text = fixed_text(100 * fraction, 1);
  if (!std::isfinite(100 * fraction)) return text;
  return (text[0] == '-' ? "" : "+") + text + " %";
}

std::string milliseconds_text(double seconds) {
  const double ms = 1e3 * seconds;
  if (ms > 0 && ms < 0.0995) return fixed_text(1e3 * ms, 1) + " us";
  return fixed_text(ms, ms < 9.95 ? 2 : ms < 99.5 ? 1 : 0) + " ms";
}

std::string bytes_text(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return fixed_text(value * 1e-9, value < 9.995e9 ? 2 : 1) + " GB";
  if (value >= 1e6) return fixed_text(value * 1e-6, value < 9.95e6 ? 1 : 0) + " MB";
  return value >= 1e3 ? fixed_text(value * 1e-3, value < 9.95e3 ? 1 : 0) + " kB" : fmt::format("{} B", bytes);
}

std::string seconds_text(double seconds) {
  if (seconds < 99.95) return fixed_text(seconds, seconds < 9.95 ? 2 : 1) + " s";
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{} min {:02} s", whole / 60, whole % 60)
                      : fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string time_text(double seconds) {
  constexpr double kMillisecondsBelow = 0.9995;
  return seconds < kMillisecondsBelow ? milliseconds_text(seconds) : seconds_text(seconds);
}

std::string interval_text(const std::optional<double>& low, const std::optional<double>& high) {
  if (!low || !high) return {};
  return fmt::format("[{}, {}]", gain_text(*low), gain_text(*high));
}

std::string gain_text(const Report::Change& change) {
  if (!change.gain) return kUnavailable;
  const std::string interval = interval_text(change.gain_low, change.gain_high);
  return interval.empty() ? gain_text(*change.gain) : gain_text(*change.gain) + " " + interval;
}

std::string speedup_text(const Report& report) {
  if (report.speedup_pairs <= 0) return kUnavailable;
  return fmt::format("{} [{}, {}]", fixed_text(report.speedup, 2), fixed_text(report.speedup_low, 2),
                     fixed_text(report.speedup_high, 2));
}

bool is_measured(double samples_per_second) {
  return samples_per_second > 0 && std::isfinite(samples_per_second);
}

std::string rate_text(double samples_per_second) {
  return is_measured(samples_per_second) ? grouped(samples_per_second) + " samples/s" : kUnavailable;
}

std::string pairs_text(const Report& report) {
  if (report.live) {
    return "In pairs of neighbouring updates of the run itself, in drawn order: all changes in turns at first; then, "
           "alone, each that seemed to pay.";
  }
  return "One change at a time, in pairs that run interleaved on the same samples.";
}

bool has_split(const Report& report) {
  const auto is_known = [](const std::optional<TimeSplit>& split) { return split && split->steps > 0; };
  return is_known(report.before) || is_known(report.after);
}

std::string left_out_text(const Report& report) {
  if (!report.live) return {};
  std::vector<std::string> parts;
  if (!is_measured(report.baseline_samples_per_second) && !is_measured(report.best_samples_per_second)) {
    parts.emplace_back("samples a second");
  }
  if (!has_split(report)) parts.emplace_back("where the time of a step goes");
  if (report.memory.resident.empty()) parts.emplace_back("memory");
  if (parts.empty()) return {};
  return fmt::format(
      "Not measured while a run tunes itself: {}. hr.watch measures these; of a recipe, headrace profile.",
      fmt::join(parts, ", "));
}

std::string split_note(const Report& report) {
  if (report.kind != Report::Kind::tuning || report.changes.empty() || !report.before) return {};
  if (!report.after) {
    return fmt::format("Of the job as written, before the first trial; {}.",
                       report.speedup_pairs > 0 ? "where the time of the steps compared later went is unavailable"
                                                : "it was not compared with a tuned one");
  }
  const auto step_s = [](const TimeSplit& split) { return split.total_s / static_cast<double>(split.steps); };
  std::string text = fmt::format(
      "Both are means over the steps of the {} pairs that the speedup is from. A step before takes {} times as long as "
      "one after; the speedup, {}, is the middle of the ratios of the single pairs, which a disturbed block moves "
      "less.",
      report.speedup_pairs, fixed_text(step_s(*report.before) / step_s(*report.after), 2),
      fixed_text(report.speedup, 2));
  if (report.late_share > 0) {
    text += fmt::format(
        " What was kept does not pay in the first {} of the run: the speedup counts that, the step after does not.",
        percent_text(report.late_share));
  }
  return text;
}

std::array<NamedPart, 6> named_parts(const TimeSplit& split) {
  return {{{"data wait", split.data_wait_s},
           {"transfer", split.transfer_s},
           {"forward", split.forward_s},
           {"backward", split.backward_s},
           {"optimizer", split.optimizer_s},
           {"other", split.other_s}}};
}

}  // namespace headrace::detail
