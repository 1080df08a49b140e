// A function whose calls are spans, under the name of the Python package performance_optimization.
#pragma once

#include <headrace/trace.h>

#include <functional>
#include <string>
#include <utility>

namespace headrace::facade {

// The name of spans; the same object for the same text, kept until the process ends. Takes a lock. Any thread.
const SpanName& operation_name(const std::string& text);

// `function`, each call of which is a span of this name in whatever headrace::Trace records. Arguments, result and
// exceptions pass through. A call costs what a Span costs; any thread that may call `function`.
//
//   const auto preprocess = hr::facade::profile_operation("data_preprocessing", [](const Data& data) { ... });
template <class Function>
auto profile_operation(const std::string& name, Function function) {
  return [&span_name = operation_name(name),
          function = std::move(function)]<class... Arguments>(Arguments&&... arguments) -> decltype(auto) {
    const Span span(span_name);
    return std::invoke(function, std::forward<Arguments>(arguments)...);
  };
}

}  // namespace headrace::facade
