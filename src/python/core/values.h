// Values of Python's in C++. Where one is of another kind, Python's own exception says so. Everything under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace headrace::python {

// A member of a module, which is imported where it is not loaded yet. Looked up each time: a static would be made under
// its own lock, and the import in it may let go of the GIL to one that waits for that.
nanobind::object imported(const char* module, const char* name);
// What `module` is in sys.modules; None: nobody has imported it.
nanobind::object loaded(const char* module);

std::string class_name(nanobind::handle value);  // "int", "ndarray"
std::string text_of(nanobind::handle value);     // str(value). UnicodeEncodeError for what UTF-8 cannot hold.
std::string repr_of(nanobind::handle value);
nanobind::str str_of(std::string_view text);  // Of UTF-8; UnicodeDecodeError for what is none.

// As bool(value), operator.index(value) and float(value) have them. OverflowError beyond 64 bits.
bool truth_of(nanobind::handle value);
std::int64_t integer_of(nanobind::handle value);
double real_of(nanobind::handle value);

// A JSON document as dicts, lists, numbers, texts and None.
nanobind::object object_of(const nlohmann::ordered_json& json);

}  // namespace headrace::python
