// Names that are chosen by a pattern, as a shell chooses files.
#pragma once

#include <string_view>

namespace headrace {

// Whether the whole text fits: * stands for any text, or none, ? for one byte. Time: at most the product of the
// lengths.
bool matches(std::string_view pattern, std::string_view text) noexcept;

}  // namespace headrace
