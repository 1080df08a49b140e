// Numbers as text for people: the same in every locale, and never 0 for what is not known.
#pragma once

#include <headrace/report.h>
#include <headrace/time_split.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace headrace::detail {

inline constexpr const char* kUnavailable = "unavailable";

std::string grouped(double value);                   // 10391.4 -> "10,391"; below 100 with one decimal: "99.5".
std::string percent_text(double fraction);           // 0.214 -> "21 %", 0.004 -> "0.4 %".
std::string gain_text(double fraction);              // 0.214 -> "+21.4 %", -0.03 -> "-3.0 %".
std::string milliseconds_text(double seconds);       // "12.3 ms"; microseconds below 0.1 ms.
std::string bytes_text(std::int64_t bytes);          // "412 MB", "1.23 GB": powers of 1,000.
std::string seconds_text(double seconds);            // "12.3 s", "4 min 05 s".
std::string time_text(double seconds);               // milliseconds_text() below 1 s, else seconds_text().
std::string fixed_text(double value, int decimals);  // "not finite" where it is not.

// "[+19.0 %, +23.1 %]"; empty when either end is missing.
std::string interval_text(const std::optional<double>& low, const std::optional<double>& high);
std::string gain_text(const Report::Change& change);  // With its interval, or "unavailable".

std::string speedup_text(const Report& report);    // "2.41 [2.33, 2.50]", or "unavailable".
bool is_measured(double samples_per_second);       // Above 0 and finite.
std::string rate_text(double samples_per_second);  // "10,391 samples/s", or "unavailable".

// How the changes of a tuning were compared: a sentence.
std::string pairs_text(const Report& report);
// Whether it has the split of any steps.
bool has_split(const Report& report);
// Of a live report, what nobody measured and is left out of it, and what measures it; empty: nothing is.
std::string left_out_text(const Report& report);

// Which steps a tuning's splits are of, and how their step times go with the speedup; empty where nothing was tried.
std::string split_note(const Report& report);

// The parts of a split in the order in which a step goes through them, with `other` last.
struct NamedPart {
  const char* name;
  double seconds;
};
std::array<NamedPart, 6> named_parts(const TimeSplit& split);

}  // namespace headrace::detail
