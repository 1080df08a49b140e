#include "python/core/values.h"

#include <nlohmann/json.hpp>

namespace headrace::python {

namespace nb = nanobind;

namespace {

std::string utf8_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* const characters = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (characters == nullptr) nb::raise_python_error();
  return {characters, static_cast<std::size_t>(size)};
}

}  // namespace

nb::object imported(const char* module, const char* name) {
  return nb::getattr(nb::module_::import_(module), name);
}

nb::object loaded(const char* module) {
  return imported("sys", "modules").attr("get")(module);
}

std::string class_name(nb::handle value) {
  return utf8_of(nb::getattr(value.type(), "__name__"));
}

std::string text_of(nb::handle value) {
  return utf8_of(nb::str(value));
}

std::string repr_of(nb::handle value) {
  return utf8_of(nb::repr(value));
}

nb::str str_of(std::string_view text) {
  PyObject* const made = PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  if (made == nullptr) nb::raise_python_error();
  return nb::steal<nb::str>(made);
}

bool truth_of(nb::handle value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

std::int64_t integer_of(nb::handle value) {
  PyObject* const index = PyNumber_Index(value.ptr());
  if (index == nullptr) nb::raise_python_error();
  const nb::object number = nb::steal(index);
  const long long integer = PyLong_AsLongLong(number.ptr());
  if (integer == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return integer;
}

double real_of(nb::handle value) {
  const double real = PyFloat_AsDouble(value.ptr());
  if (real == -1.0 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return real;
}

nb::object object_of(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::object: {
      nb::dict dict;
      for (const auto& [key, value] : json.items()) dict[str_of(key)] = object_of(value);
      return dict;
    }
    case nlohmann::ordered_json::value_t::array: {
      nb::list list;
      for (const auto& value : json) list.append(object_of(value));
      return list;
    }
    case nlohmann::ordered_json::value_t::string:
      return str_of(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::boolean:
      return nb::bool_(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return nb::int_(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      return nb::int_(json.get<std::uint64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return nb::float_(json.get<double>());
    default:
      return nb::none();
  }
}

}  // namespace headrace::python
