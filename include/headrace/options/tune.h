// Limits and freedoms of the tuner, and fake knobs that test it.
#pragma once

#include <headrace/options.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace {

// A knob with a known effect, through the real loop: proves that the tuner tells good from bad.
struct PlantedOptions {
  std::string name{};
  double off_ms = 0.0;             // Added to each step with the knob off.
  double on_ms = 0.0;              // Added to each step with the knob on.
  double gradient_error = 0.0;     // Relative L2 error of all gradients with the knob on.
  double throw_probability = 0.0;  // Of an exception, each step with the knob on.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, PlantedOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "Name of the fake knob in the ledger.");
  visit("off_ms", o.off_ms, Range<double>{0.0, 1e4}, "Milliseconds added to each step with the knob off.");
  visit("on_ms", o.on_ms, Range<double>{0.0, 1e4}, "Milliseconds added to each step with the knob on.");
  visit("gradient_error", o.gradient_error, Range<double>{0.0, 1e3},
        "Relative error put on the gradients with the knob on.");
  visit("throw_probability", o.throw_probability, Range<double>{0.0, 1.0},
        "Probability of an exception, each step with the knob on.");
}

struct TuneOptions {
  double budget_s = 90.0;            // Of all trials together. A candidate that it leaves open is inconclusive.
  double gain_min = 0.02;            // The lower end of a trial's interval must lie above it.
  std::vector<std::string> fixed{};  // Recipe keys the tuner may not touch.
  std::vector<std::string> only{};   // Candidates to try, by name; empty: all.
  std::vector<PlantedOptions> planted{};
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TuneOptions>
void describe(Visitor& visit, Options& o) {
  visit("budget_s", o.budget_s, Range<double>{1.0, 1e6},
        "Seconds for all trials together; what stays open then is inconclusive.");
  visit("gain_min", o.gain_min, Range<double>{0.0, 10.0},
        "Smallest gain worth keeping; the interval's lower end must lie above it.");
  visit("fixed", o.fixed, "Recipe keys that the tuner may not touch.");
  visit("only", o.only, "Names of the candidates to try; empty tries all.");
  visit("planted", o.planted, "Fake knobs with a known effect, to test the tuner.");
}

}  // namespace headrace
