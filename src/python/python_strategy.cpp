#include "python/python_strategy.h"

#include <utility>

#include "core/base/fail.h"
#include "python/live_loop_object.h"

namespace headrace::python {

namespace py = pybind11;

PythonContext::PythonContext(py::dict strategies_by_name, py::object python_context)
    : strategies(std::move(strategies_by_name)), context(std::move(python_context)) {
  live = context.attr("live").cast<bool>();
}

PythonInterrupt::PythonInterrupt(const py::error_already_set& error)
    : Error(ErrorCode::cancelled, "python: interrupted"), raised(error) {}

PythonStrategy::PythonStrategy(std::string name, std::string sentence, NumericClass numerics)
    : name_(std::move(name)), sentence_(std::move(sentence)), numerics_(numerics) {}

py::object PythonStrategy::call(const StrategyContext& context, const char* method) const {
  const auto& given = static_cast<const PythonContext&>(context);
  try {
    return given.strategies[py::str(name_)].attr(method)(given.context);
  } catch (const py::error_already_set& raised) {
    if (!raised.matches(PyExc_Exception)) throw PythonInterrupt(raised);
    throw Error(code_of(raised), raised.what());
  }
}

std::string PythonStrategy::told(const StrategyContext& context, const char* method) const {
  const py::object found = call(context, method);
  if (found.is_none()) return {};
  if (py::isinstance<py::str>(found)) return found.cast<std::string>();
  fail(ErrorCode::invalid_argument, "wanted a text or None, found {}",
       py::type::of(found).attr("__name__").cast<std::string>());
}

}  // namespace headrace::python
