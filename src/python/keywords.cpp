#include "python/keywords.h"

#include <headrace/option_fields.h>
#include <pybind11/stl.h>

#include <nlohmann/json.hpp>

#include "core/base/fail.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

std::vector<double> reals(const std::string& key, const py::sequence& list) {
  std::vector<double> values;
  for (const py::handle item : list) {
    if (PyFloat_Check(item.ptr()) == 0 && PyLong_Check(item.ptr()) == 0) {
      fail(ErrorCode::invalid_argument, "{}: wanted numbers, found {}", key, std::string(py::repr(item)));
    }
    values.push_back(item.cast<double>());
  }
  return values;
}

OptionValue option_value(const Field& field, py::handle value) {
  if (PyBool_Check(value.ptr()) != 0) return value.cast<bool>();
  if (PyLong_Check(value.ptr()) != 0) return value.cast<std::int64_t>();
  if (PyFloat_Check(value.ptr()) != 0) return value.cast<double>();
  if (PyUnicode_Check(value.ptr()) != 0) return value.cast<std::string>();
  if (py::hasattr(value, "tolist")) return option_value(field, value.attr("tolist")());  // An array or a tensor.
  if (py::hasattr(value, "__fspath__")) return py::str(value.attr("__fspath__")()).cast<std::string>();
  if (PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0) {
    const auto list = py::reinterpret_borrow<py::sequence>(value);
    if (field.kind == FieldKind::texts) return list.cast<std::vector<std::string>>();
    return reals(field.key, list);
  }
  fail(ErrorCode::invalid_argument, "{}: wanted a number, a text or a list of them, found {}", field.key,
       std::string(Py_TYPE(value.ptr())->tp_name));
}

py::object keyword_value(const OptionValue& value) {
  return std::visit([](const auto& plain) -> py::object { return py::cast(plain); }, value);
}

}  // namespace

void set_keywords(const std::vector<Field>& fields, const py::dict& keywords, const std::string& prefix) {
  for (const auto& [name, value] : keywords) {
    const std::string key = prefix + std::string(py::str(name));
    if (value.is_none()) continue;
    if (py::isinstance<py::dict>(value)) {
      set_keywords(fields, py::reinterpret_borrow<py::dict>(value), key + ".");
      continue;
    }
    const Field& field = field_named(fields, key);
    field.set(option_value(field, value));
  }
}

py::dict keywords_of(const std::vector<Field>& fields) {
  py::dict all;
  for (const Field& field : fields) {
    py::dict table = all;
    std::string name = field.key;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
      const py::str outer(name.substr(0, dot));
      if (!table.contains(outer)) table[outer] = py::dict();
      table = py::reinterpret_borrow<py::dict>(table[outer]);
      name = name.substr(dot + 1);
    }
    table[py::str(name)] = keyword_value(field.get());
  }
  return all;
}

py::object object_of(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::object: {
      py::dict dict;
      for (const auto& [key, value] : json.items()) dict[py::str(key)] = object_of(value);
      return dict;
    }
    case nlohmann::ordered_json::value_t::array: {
      py::list list;
      for (const auto& value : json) list.append(object_of(value));
      return list;
    }
    case nlohmann::ordered_json::value_t::string:
      return py::str(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::boolean:
      return py::bool_(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
    case nlohmann::ordered_json::value_t::number_unsigned:
      return py::int_(json.get<std::int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return py::float_(json.get<double>());
    default:
      return py::none();
  }
}

}  // namespace headrace::python
