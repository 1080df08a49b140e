// A strategy written in Python, as C++ applies it.
#pragma once

#include <headrace/error.h>
#include <headrace/strategy.h>
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace headrace::python {

// What a call of Python's hands over: the headrace.Strategy objects by name, and their headrace.StrategyContext. Valid
// as long as that call.
struct PythonContext final : StrategyContext {
  PythonContext(nanobind::dict strategies_by_name, nanobind::object python_context);

  nanobind::dict strategies;
  nanobind::object context;
};

// What was raised is no Exception: Ctrl-C, SystemExit. It goes through the tuner as a cancellation, and out of it as
// what it was.
struct PythonInterrupt final : Error {
  explicit PythonInterrupt(const nanobind::python_error& error);

  nanobind::python_error raised;
};

// Holds no object of Python's, which Python's garbage collector would not see: each call gets them by its context,
// which must be a PythonContext. Every call under the GIL. What Python raises is an Error "ValueError: ..." of the code
// that headrace has for it, or a PythonInterrupt.
class PythonStrategy final : public Strategy {
 public:
  PythonStrategy(std::string name, std::string sentence, NumericClass numerics);

  std::string_view name() const noexcept override { return name_; }
  std::string sentence() const override { return sentence_; }
  NumericClass numerics() const noexcept override { return numerics_; }
  std::string why_not(const StrategyContext& context) const override { return told(context, "why_not"); }
  void apply(const StrategyContext& context) override { call(context, "apply"); }
  void undo(const StrategyContext& context) override { call(context, "undo"); }
  std::string verify(const StrategyContext& context) override { return told(context, "verify"); }

 private:
  nanobind::object call(const StrategyContext& context, const char* method) const;
  std::string told(const StrategyContext& context, const char* method) const;  // Empty for None.

  std::string name_, sentence_;
  NumericClass numerics_;
};

}  // namespace headrace::python
