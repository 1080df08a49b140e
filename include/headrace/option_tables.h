// Options that are lists of tables ([[data.transforms]]), read and written beside the plain ones.
#pragma once

#include <headrace/option_fields.h>

#include <cstddef>
#include <string>
#include <vector>

namespace headrace {

// Of a list of named structs (its field has `choices`): the fields of element i, and of one with defaults, after it
// became the struct of that name. Error{invalid_argument}: there is none; wanted are the choices.
std::vector<Field> named_element(const Field& tables, std::size_t i, const OptionValue& name);
std::vector<Field> named_defaults(const Field& tables, const std::string& name);

// The fields, and behind each list of tables those of its elements.
std::vector<Field> with_elements(std::vector<Field> fields);

// The list as one value of TOML, without the options that have their defaults: [{name = "Resize", size = [256]}].
std::string tables_toml(const Field& tables);

}  // namespace headrace
