// Python's keywords as options: the same names, ranges and sentences as in TOML and on the command line.
#pragma once

#include <headrace/option_fields.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace headrace::python {

// Sets each keyword's field: bool, int, float, str, os.PathLike, lists, arrays or tensors of numbers or texts, a
// torch.dtype as its name, an enum's member as its value; a dict holds the keys of a table (transform={"size": 64} is
// transform.size), a list those of a list of tables, each a dict (transforms=[{"name": "Resize", "size": 64}]) or an
// object whose method as_table() gives one; None leaves the default.
// Error{invalid_argument} as Field::set, with the nearest known key for an unknown one.
void set_keywords(const std::vector<Field>& fields, const pybind11::dict& keywords, const std::string& prefix = "");

// What keywords could have been given to make these fields what they are.
pybind11::dict keywords_of(const std::vector<Field>& fields);

}  // namespace headrace::python
