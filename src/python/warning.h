// Warnings of Python.
#pragma once

#include <string>

namespace headrace::python {

// A RuntimeWarning at the line of Python that called. Throws error_already_set where the user's filters make it an
// error. Under the GIL.
void warn(const std::string& text);

}  // namespace headrace::python
