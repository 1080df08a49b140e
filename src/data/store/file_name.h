// Names of files, which are bytes and need not be text.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// The name as text of one line: bytes that are not UTF-8 and control characters become \xNN.
std::string printable_name(std::string_view name);

// Python's order of the same names, so that classes get the labels that torchvision's ImageFolder gives them: by code
// point, where a byte that is not UTF-8 counts as U+DC00 + byte (PEP 383).
bool python_less(std::string_view left, std::string_view right);

}  // namespace headrace
