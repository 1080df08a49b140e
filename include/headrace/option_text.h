// Lists of options as TOML, Markdown and JSON schema. Numbers are read and written without the locale, and real ones
// come back bit for bit.
#pragma once

#include <headrace/option_fields.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// A key that a document set, and the line it stands on.
struct KeyLine {
  std::string key;
  std::int64_t line;
};

// Reads a TOML document into the fields; returns the keys it set, in file order, with "tune.planted[0].name" and the
// like after "tune.planted". A fault (syntax, unknown key with the nearest known one, wrong type, value out of range,
// over 1 MiB) is Error{invalid_argument} that begins with `source`:line; the fields are then partly set.
std::vector<KeyLine> read_toml(const std::vector<Field>& fields, std::string_view text, std::string_view source);
// A TOML document with every field, grouped by table, in the order of the fields. `comment(key)` may return a comment
// for a key's line ("tuned: kept, 1.21x") or an empty string.
std::string write_toml(const std::vector<Field>& fields,
                       const std::function<std::string(const std::string&)>& comment = {});
// docs/options.md and the JSON schema (draft 2020-12) of the same list; defaults come from the objects' current values.
std::string options_markdown(const std::vector<Field>& fields, std::string_view title);
std::string options_schema(const std::vector<Field>& fields, std::string_view title);

}  // namespace headrace
