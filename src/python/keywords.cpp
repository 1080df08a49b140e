#include "python/keywords.h"

#include <headrace/option_tables.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string_view>

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

std::vector<std::int64_t> integers(const std::string& key, const py::sequence& list) {
  std::vector<std::int64_t> values;
  for (const py::handle item : list) {
    if (PyLong_Check(item.ptr()) == 0 || PyBool_Check(item.ptr()) != 0) {
      fail(ErrorCode::invalid_argument, "{}: wanted whole numbers, found {}", key, std::string(py::repr(item)));
    }
    values.push_back(item.cast<std::int64_t>());
  }
  return values;
}

OptionValue option_value(const Field& field, py::handle value) {
  if (PyBool_Check(value.ptr()) != 0) return value.cast<bool>();
  if (PyLong_Check(value.ptr()) != 0) return value.cast<std::int64_t>();
  if (PyFloat_Check(value.ptr()) != 0) return value.cast<double>();
  if (PyUnicode_Check(value.ptr()) != 0) return value.cast<std::string>();
  if (std::string_view(Py_TYPE(value.ptr())->tp_name) == "torch.dtype") {
    return std::string(py::str(value)).substr(sizeof("torch.") - 1);
  }
  if (py::isinstance(value, py::module_::import("enum").attr("Enum"))) {
    return option_value(field, py::object(value.attr("value")));
  }
  if (py::hasattr(value, "tolist")) return option_value(field, value.attr("tolist")());  // An array or a tensor.
  if (py::hasattr(value, "__fspath__")) return py::str(value.attr("__fspath__")()).cast<std::string>();
  if (PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0) {
    const auto list = py::reinterpret_borrow<py::sequence>(value);
    if (field.kind == FieldKind::texts) return list.cast<std::vector<std::string>>();
    if (field.kind == FieldKind::integers) return integers(field.key, list);
    return reals(field.key, list);
  }
  fail(ErrorCode::invalid_argument, "{}: wanted a number, a text or a list of them, found {}", field.key,
       std::string(Py_TYPE(value.ptr())->tp_name));
}

// The keys of one table of a list.
py::dict table_of(const std::string& key, py::handle element) {
  py::object table = py::reinterpret_borrow<py::object>(element);
  if (py::hasattr(element, "as_table")) table = element.attr("as_table")();
  if (py::isinstance<py::dict>(table)) return py::reinterpret_borrow<py::dict>(table);
  fail(ErrorCode::invalid_argument, "{}: wanted a dict of its keys, or an object whose as_table() gives one; found {}",
       key, std::string(Py_TYPE(table.ptr())->tp_name));
}

void set_tables(const Field& field, py::handle value) {
  if (PyList_Check(value.ptr()) == 0 && PyTuple_Check(value.ptr()) == 0) {
    fail(ErrorCode::invalid_argument, "{}: wanted a list of its tables, found {}", field.key,
         std::string(Py_TYPE(value.ptr())->tp_name));
  }
  field.clear_elements();
  for (std::size_t i = 0; const py::handle element : py::reinterpret_borrow<py::sequence>(value)) {
    const std::string key = fmt::format("{}[{}]", field.key, i);
    const py::dict table = table_of(key, element);
    if (!field.choices.empty() && !table.contains("name")) {
      fail(ErrorCode::invalid_argument, "{}.name is missing; wanted {}", key, fmt::join(field.choices, " | "));
    }
    const std::vector<Field> fields =
        field.choices.empty() ? field.element(i) : named_element(field, i, option_value(field, table["name"]));
    set_keywords(fields, table, key + ".");
    ++i;
  }
}

py::object keyword_value(const Field& field) {
  if (field.kind != FieldKind::tables) {
    return std::visit([](const auto& plain) -> py::object { return py::cast(plain); }, field.get());
  }
  py::list list;
  for (std::size_t i = 0; i < field.element_count(); ++i) {
    const std::string prefix = fmt::format("{}[{}].", field.key, i);
    std::vector<Field> fields = field.element(i);
    for (Field& of_element : fields) of_element.key.erase(0, prefix.size());
    list.append(keywords_of(fields));
  }
  return list;
}

}  // namespace

void set_keywords(const std::vector<Field>& fields, const py::dict& keywords, const std::string& prefix) {
  for (const auto& [name, value] : keywords) {
    const std::string key = prefix + std::string(py::str(name));
    if (value.is_none()) continue;
    const bool is_list = std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
      return field.kind == FieldKind::tables && field.key == key;
    });
    if (!is_list && py::isinstance<py::dict>(value)) {
      set_keywords(fields, py::reinterpret_borrow<py::dict>(value), key + ".");
      continue;
    }
    const Field& field = field_named(fields, key);
    if (is_list) {
      set_tables(field, value);
    } else {
      field.set(option_value(field, value));
    }
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
    table[py::str(name)] = keyword_value(field);
  }
  return all;
}

}  // namespace headrace::python
