#include <headrace/compare_functions.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "python/core/bindings.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// Ctrl-C ends the comparison where the function itself never looks.
ComparedFunction calls_of(const nb::callable& function) {
  return [&function] {
    from_python([&function] {
      function();
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
  };
}

}  // namespace

void register_compare(nb::module_& module) {
  const CompareFunctionsOptions defaults;
  module.def(
      "compare_functions",
      [](const nb::callable& old_function, const nb::callable& new_function, std::int64_t pairs, double budget_s,
         double sample_s, std::int64_t warmup_calls, double tolerance, std::uint64_t seed, std::string old_name,
         std::string new_name) {
        CompareFunctionsOptions options;
        options.pairs = pairs;
        options.budget_s = budget_s;
        options.sample_s = sample_s;
        options.warmup_calls = warmup_calls;
        options.tolerance = tolerance;
        options.seed = seed;
        options.old_name = std::move(old_name);
        options.new_name = std::move(new_name);
        const FunctionComparison found = compare_functions(calls_of(old_function), calls_of(new_function), options);
        return nb::make_tuple(object_of(nlohmann::ordered_json::parse(json_text(found))), str_of(report_text(found)));
      },
      nb::arg("old_function"), nb::arg("new_function"), nb::kw_only(), nb::arg("pairs") = defaults.pairs,
      nb::arg("budget_s") = defaults.budget_s, nb::arg("sample_s") = defaults.sample_s,
      nb::arg("warmup_calls") = defaults.warmup_calls, nb::arg("tolerance") = defaults.tolerance,
      nb::arg("seed") = defaults.seed, nb::arg("old_name"), nb::arg("new_name"),
      "Whether the new one of two functions is slower: the comparison as a dict, and as the text of its report.");
}

}  // namespace headrace::python
