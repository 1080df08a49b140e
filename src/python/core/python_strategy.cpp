#include "python/core/python_strategy.h"

#include <utility>

#include "core/base/fail.h"
#include "python/core/error_codes.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// What Python raises in work(), as a PythonStrategy throws it.
template <class Work>
auto as_error(Work&& work) {
  try {
    return work();
  } catch (const nb::python_error& raised) {
    if (!raised.matches(PyExc_Exception)) throw PythonInterrupt(raised);
    throw Error(code_of(raised.value()), sentence_of(raised));
  }
}

}  // namespace

PythonContext::PythonContext(nb::dict strategies_by_name, nb::object python_context)
    : strategies(std::move(strategies_by_name)), context(std::move(python_context)) {
  live = truth_of(nb::getattr(context, "live"));
}

PythonInterrupt::PythonInterrupt(const nb::python_error& error)
    : Error(ErrorCode::cancelled, "python: interrupted"), raised(error) {}

PythonStrategy::PythonStrategy(std::string name, std::string sentence, NumericClass numerics)
    : name_(std::move(name)), sentence_(std::move(sentence)), numerics_(numerics) {}

nb::object PythonStrategy::call(const StrategyContext& context, const char* method) const {
  const auto& given = static_cast<const PythonContext&>(context);
  return as_error([&] { return given.strategies[str_of(name_)].attr(method)(given.context); });
}

std::string PythonStrategy::told(const StrategyContext& context, const char* method) const {
  const nb::object found = call(context, method);
  if (found.is_none()) return {};
  if (nb::isinstance<nb::str>(found)) return as_error([&] { return text_of(found); });
  fail(ErrorCode::invalid_argument, "wanted a text or None, found {}", class_name(found));
}

}  // namespace headrace::python
