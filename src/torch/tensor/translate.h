// The one place where foreign exceptions become Error: called at the four edges (CLI main, request handler, binding,
// worker).
#pragma once

#include <headrace/error.h>

#include <exception>

namespace headrace {

// Error stays itself; c10::Error and std::exception become Error{internal, out_of_memory, unsupported or
// invalid_argument} with the first line of the message, without a C++ backtrace; of what a TorchScript module threw,
// the first line of the reason, without the script's stack.
Error translate(std::exception_ptr exception);

}  // namespace headrace
