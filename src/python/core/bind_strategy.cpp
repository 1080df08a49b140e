#include <headrace/strategy_switch.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/knobs/strategy_name.h"
#include "app/knobs/strategy_offer.h"
#include "core/base/fail.h"
#include "python/core/bindings.h"
#include "python/core/python_strategy.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

using Written = std::tuple<std::string, std::string, std::string>;  // Name, sentence, numerics.

NumericClass numerics_of(const std::string& name, const std::string& numerics) {
  std::string wanted;
  for (const auto& choice : choices(NumericClass{})) {
    if (choice.name == numerics) return choice.value;
    wanted.append(wanted.empty() ? "" : ", ").append(choice.name);
  }
  fail(ErrorCode::invalid_argument, "strategy: {}: numerics: wanted one of {}, found \"{}\"", name, wanted, numerics);
}

// Those of C++ first.
StrategySwitch switch_of(const std::vector<Written>& strategies) {
  auto all = registered_strategies();
  for (const auto& [name, sentence, numerics] : strategies) {
    all.push_back(std::make_shared<PythonStrategy>(name, sentence, numerics_of(name, numerics)));
  }
  return StrategySwitch(std::move(all));
}

// What Python itself was told passes as it was.
template <class Work>
auto out_of(Work&& work) {
  try {
    return work();
  } catch (const PythonInterrupt& interrupt) {
    throw nb::python_error(interrupt.raised);
  }
}

std::map<std::string, std::string> native_strategies() {
  std::map<std::string, std::string> sentences;
  for (const auto& strategy : registered_strategies()) sentences.emplace(strategy->name(), strategy->sentence());
  return sentences;
}

}  // namespace

void register_strategies(nb::module_& module) {
  nb::class_<StrategySwitch>(module, "StrategySwitch", "Strategies of one tuning; include/headrace/strategy_switch.h.")
      .def(
          "__init__",
          [](StrategySwitch* self, const std::vector<Written>& strategies) {
            new (self) StrategySwitch(switch_of(strategies));
          },
          nb::arg("strategies"), "Those that C++ registered, and these of Python: name, sentence, numerics.")
      .def_prop_ro("keys", &StrategySwitch::keys)
      .def_prop_ro(
          "ended", [](const StrategySwitch& self) { return self.ended(); }, "By key, why one is not applied again.")
      .def(
          "add_to",
          [](const StrategySwitch& self, Offer& offered, const std::string& bound, nb::dict strategies,
             nb::object context) {
            const PythonContext given(std::move(strategies), std::move(context));
            out_of([&] { add_strategies(offered, self, given, bound); });
          },
          nb::arg("offered"), nb::arg("bound"), nb::arg("strategies"), nb::arg("context"),
          "Adds what applies to the candidates and the rest to not_tried. strategies: headrace.Strategy by name.")
      .def(
          "set",
          [](StrategySwitch& self, const Settings& settings, nb::dict strategies, nb::object context) {
            const PythonContext given(std::move(strategies), std::move(context));
            out_of([&] { self.set(settings, given); });
          },
          nb::arg("settings"), nb::arg("strategies"), nb::arg("context"),
          "Makes exactly the strategies hold that are on in the settings.");
  module.def(
      "check_strategy",
      [](const std::string& name, const std::string& sentence, const std::string& numerics,
         std::vector<std::string> taken) {
        for (const auto& strategy : registered_strategies()) taken.emplace_back(strategy->name());
        check_strategy(name, sentence, taken);
        numerics_of(name, numerics);
      },
      nb::arg("name"), nb::arg("sentence"), nb::arg("numerics"), nb::arg("taken"),
      "InvalidArgumentError where these are none of a strategy; taken: names that are registered in Python.");
  module.def("native_strategies", &native_strategies, "What C++ registered: sentences by name.");
}

}  // namespace headrace::python
