// What this module calls keys and kinds in more than one source.
#pragma once

#include <headrace/option_fields.h>

namespace headrace {

// What a field of that kind takes: "a whole number".
const char* wanted_words(FieldKind kind);

// "data.transform.pad" -> "data.transform"; empty for a key of the root.
std::string table_of(std::string_view key);

}  // namespace headrace
