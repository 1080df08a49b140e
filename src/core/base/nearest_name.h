// What a misspelt name was meant to be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Insertions, deletions, replacements and swaps of neighbours that lead from one text to the other ("optimal string
// alignment"). Texts beyond 64 characters are nobody's typing error: they are as far apart as they are long.
std::size_t edit_distance(std::string_view a, std::string_view b);

// From a name that is a typing error of `text`: a third of its length, and at least one.
std::size_t edits_allowed(std::string_view text);

// The nearest of `names`, or empty when none is near. Capitals and small letters (ASCII) are alike.
std::string nearest_name(const std::vector<std::string>& names, std::string_view name);

}  // namespace headrace
