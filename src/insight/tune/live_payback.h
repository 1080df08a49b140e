// Whether what a change takes to prepare, as compiling a model does, comes back in what is left of a run.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// What is prepared may gain so much, as long as nobody has measured it.
inline constexpr double kGainHoped = 0.3;

// Seconds of the run as it is without the change, after which a gain above 0 has made up for `prepare_s`.
double paid_back_after_s(double prepare_s, double gain) noexcept;

// "43 s to prepare; at +19 % paid back after 269 s; 1900 s remain". `rest_s`: of the run as it is without the change;
// nullopt: unknown. A gain of 0 or below pays nothing back, and nothing is said of that. `note`: where the seconds are
// from, "43 s to prepare, as 3 compilations here took; ..."; empty: nothing is said of that.
std::string payback_text(double prepare_s, double gain, std::optional<double> rest_s, std::string_view note = {});

}  // namespace headrace
