// Codes of headrace's errors, as Python has them.
#pragma once

#include <headrace/error.h>
#include <nanobind/nanobind.h>

#include <string_view>

namespace headrace::python {

// Of "out_of_memory"; internal for a name that is none of to_string()'s.
ErrorCode code_named(std::string_view name) noexcept;
// Of an Exception of any kind, as headrace._kept_call.code_of() tells it. Under the GIL.
ErrorCode code_of(nanobind::handle exception);

}  // namespace headrace::python
