// What this module calls keys and kinds in more than one source.
#pragma once

#include <headrace/option_fields.h>

namespace headrace {

// What a field of that kind takes: "a whole number".
const char* wanted_words(FieldKind kind);

// "data.transform.pad" -> "data.transform"; empty for a key of the root.
std::string table_of(std::string_view key);

// The name today of a choice that a key had in an earlier version; the key may lack the tables around it. Any other is
// its own.
std::string current_choice(std::string_view key, std::string_view value);

}  // namespace headrace
