// Limits and freedoms of the tuner, and fake knobs that test it.
#pragma once

#include <headrace/options.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace {

// How close a change must stay to the original; each class allows more than the one before. A change of random draws
// alone counts as rounding. What a change to what batches hold must show in whichever class is mean gradients: those of
// 4 batches as it loads them lie at most 1.5 times as far from those of 4 as written as two such sets as written from
// one another.
enum class NumericClass {
  bit_equal,  // Same bits of every parameter and buffer after 5 steps.
  // One step from one state, 5 batches: as near to the same batches in float64 as the original is, up to a factor of 4;
  // where float64 is not affordable, loss 1e-5 relative, gradients 1e-2 relative L2.
  rounding,
  // Gradients of one step from one state, on each of 5 batches: cosine at least 0.9, relative L2 at most half the
  // distance between the original's own gradients of two batches.
  reduced_precision,
};
constexpr auto choices(NumericClass) {
  return std::array{Choice<NumericClass>{NumericClass::bit_equal, "bit_equal"},
                    Choice<NumericClass>{NumericClass::rounding, "rounding"},
                    Choice<NumericClass>{NumericClass::reduced_precision, "reduced_precision"}};
}

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
  double budget_s = 90.0;        // Of all trials together. A candidate that it leaves open is inconclusive.
  std::int64_t samples_max = 0;  // Training samples that trials share; 0: all there are.
  double gain_min = 0.02;        // A kept change gains more, with an error of 1 %.
  // Candidates of a looser class are not tried. Of a recipe with `online` that does not set it, load_recipe() makes it
  // rounding: what is tuned then is the run itself, and no copy of it.
  NumericClass allow = NumericClass::reduced_precision;
  std::vector<std::string> fixed{};       // Recipe keys the tuner may not touch.
  std::vector<std::string> only{};        // Candidates to try, by name; empty: all.
  bool online = false;                    // headrace train tries candidates between its own updates.
  std::string replay{};                   // ledger.json of a run that did, whose settings it repeats; empty: none.
  std::vector<std::string> strategies{};  // Shared libraries that register candidates: headrace/strategy.h.
  std::vector<PlantedOptions> planted{};
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, TuneOptions>
void describe(Visitor& visit, Options& o) {
  visit("budget_s", o.budget_s, Range<double>{1.0, 1e6},
        "Seconds for all trials together; what stays open then is inconclusive.");
  visit(
      "samples_max", o.samples_max, Range<std::int64_t>{0, std::int64_t{1} << 40},
      "The most training samples that trials read: the first of an epoch, in whole batches, again and again; 0 is all "
      "of them. What a change must earn over the whole run counts all.");
  visit("gain_min", o.gain_min, Range<double>{0.0, 10.0},
        "Smallest gain worth keeping: a change that gains no more is kept in at most 1 % of cases, one that gains as "
        "much is dropped in at most 5 %.");
  visit("allow", o.allow,
        "What a kept change may do to the numbers: bit_equal nothing, rounding what another order of the same sums "
        "does, reduced_precision gradients that differ by at most half as much as those of two batches. Where online "
        "is true and nobody sets this, it is rounding.");
  visit("fixed", o.fixed, "Recipe keys that the tuner may not touch.");
  visit("only", o.only, "Names of the candidates to try; empty tries all.");
  visit("online", o.online,
        "Let headrace train tune itself: changes take turns between its own updates, what is proved to pay stays, in a "
        "resumed run too, and evaluations are made as the recipe is written. budget_s does not count then: at no "
        "update is the run further behind the recipe as written than 10 s and 2 % of its length.");
  visit("replay", o.replay,
        "The ledger.json of a run that tuned itself: headrace train switches settings at the same updates and tries "
        "nothing, which repeats that run bit for bit. Empty is none.");
  visit("strategies", o.strategies,
        "Shared libraries with changes of your own, tried behind all others. Code of theirs runs in this process.");
  visit("planted", o.planted, "Fake knobs with a known effect, to test the tuner.");
}

}  // namespace headrace
