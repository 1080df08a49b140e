// How operators of a framework lie in a trace: as spans, whose category says that they are operators.
#pragma once

#include <headrace/trace.h>

#include <string_view>

namespace headrace::operators {

// A span of such a category has the operator's name, "aten::addmm". With memory its value is the bytes that the call
// allocated less those that it freed, on its thread; without it the value is 0 and means nothing. Where shapes of the
// arguments are recorded, the category goes on behind a space: "operator [[32, 64], [64, 10], []]", one list an
// argument, empty for what is no dense tensor.
inline constexpr std::string_view kCategory = "operator";
inline constexpr std::string_view kCategoryWithMemory = "operator,memory";

// The bytes that a thread holds more than at the recording's start, after each operator that changed them.
inline constexpr SpanName kMemory{"operator_memory", "mark"};

// A step of a profile, whose value is its number.
inline constexpr SpanName kStep{"profiler_step", "work"};

}  // namespace headrace::operators
