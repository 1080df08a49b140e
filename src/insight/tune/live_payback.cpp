#include "insight/tune/live_payback.h"

#include <fmt/format.h>

namespace headrace {

double paid_back_after_s(double prepare_s, double gain) noexcept {
  return prepare_s / (1 - 1 / (1 + gain));
}

std::string payback_text(double prepare_s, double gain, std::optional<double> rest_s, std::string_view note) {
  std::string text = fmt::format("{:.3g} s to prepare", prepare_s);
  if (!note.empty()) text += fmt::format(", {}", note);
  if (gain > 0) {
    text += fmt::format("; at {:+.0f} % paid back after {:.0f} s", gain * 100, paid_back_after_s(prepare_s, gain));
  }
  return text + (rest_s ? fmt::format("; {:.0f} s remain", *rest_s) : "; how long the run goes on is not known");
}

}  // namespace headrace
