#include "python/core/keywords.h"

#include <headrace/option_tables.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

std::int64_t whole(const std::string& key, nb::handle value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0) fail(ErrorCode::invalid_argument, "{}: {} does not fit into 64 bits", key, repr_of(value));
  return number;
}

std::vector<double> reals(const std::string& key, nb::handle list) {
  std::vector<double> values;
  for (const nb::handle item : nb::borrow(list)) {
    if (PyFloat_Check(item.ptr()) == 0 && PyLong_Check(item.ptr()) == 0) {
      fail(ErrorCode::invalid_argument, "{}: wanted numbers, found {}", key, repr_of(item));
    }
    values.push_back(real_of(item));
  }
  return values;
}

std::vector<std::int64_t> integers(const std::string& key, nb::handle list) {
  std::vector<std::int64_t> values;
  for (const nb::handle item : nb::borrow(list)) {
    if (PyLong_Check(item.ptr()) == 0 || PyBool_Check(item.ptr()) != 0) {
      fail(ErrorCode::invalid_argument, "{}: wanted whole numbers, found {}", key, repr_of(item));
    }
    values.push_back(whole(key, item));
  }
  return values;
}

std::vector<std::string> texts(const std::string& key, nb::handle list) {
  std::vector<std::string> values;
  for (const nb::handle item : nb::borrow(list)) {
    if (PyUnicode_Check(item.ptr()) == 0) {
      fail(ErrorCode::invalid_argument, "{}: wanted texts, found {}", key, repr_of(item));
    }
    values.push_back(text_of(item));
  }
  return values;
}

bool is_torch_dtype(nb::handle value) {
  return class_name(value) == "dtype" && text_of(nb::getattr(value.type(), "__module__")) == "torch";
}

OptionValue option_value(const Field& field, nb::handle value) {
  PyObject* const object = value.ptr();
  if (PyBool_Check(object) != 0) return truth_of(value);
  if (PyLong_Check(object) != 0) return whole(field.key, value);
  if (PyFloat_Check(object) != 0) return real_of(value);
  if (PyUnicode_Check(object) != 0) return text_of(value);
  if (is_torch_dtype(value)) return text_of(value).substr(sizeof("torch.") - 1);
  if (nb::isinstance(value, imported("enum", "Enum"))) return option_value(field, nb::getattr(value, "value"));
  // An array or a tensor.
  if (nb::hasattr(value, "tolist")) return option_value(field, nb::getattr(value, "tolist")());
  if (nb::hasattr(value, "__fspath__")) return text_of(nb::getattr(value, "__fspath__")());
  if (PyList_Check(object) != 0 || PyTuple_Check(object) != 0) {
    if (field.kind == FieldKind::texts) return texts(field.key, value);
    if (field.kind == FieldKind::integers) return integers(field.key, value);
    return reals(field.key, value);
  }
  fail(ErrorCode::invalid_argument, "{}: wanted a number, a text or a list of them, found {}", field.key,
       class_name(value));
}

// The keys of one table of a list.
nb::dict table_of(const std::string& key, nb::handle element) {
  nb::object table = nb::borrow(element);
  if (nb::hasattr(element, "as_table")) table = nb::getattr(element, "as_table")();
  if (nb::isinstance<nb::dict>(table)) return nb::borrow<nb::dict>(table);
  fail(ErrorCode::invalid_argument, "{}: wanted a dict of its keys, or an object whose as_table() gives one; found {}",
       key, class_name(table));
}

void set_tables(const Field& field, nb::handle value) {
  if (PyList_Check(value.ptr()) == 0 && PyTuple_Check(value.ptr()) == 0) {
    fail(ErrorCode::invalid_argument, "{}: wanted a list of its tables, found {}", field.key, class_name(value));
  }
  field.clear_elements();
  for (std::size_t i = 0; const nb::handle element : nb::borrow(value)) {
    const std::string key = fmt::format("{}[{}]", field.key, i);
    const nb::dict table = table_of(key, element);
    if (!field.choices.empty() && !table.contains("name")) {
      fail(ErrorCode::invalid_argument, "{}.name is missing; wanted {}", key, fmt::join(field.choices, " | "));
    }
    const std::vector<Field> fields =
        field.choices.empty() ? field.element(i) : named_element(field, i, option_value(field, table["name"]));
    set_keywords(fields, table, key + ".");
    ++i;
  }
}

nb::object keyword_value(const Field& field) {
  if (field.kind != FieldKind::tables) {
    return std::visit([](const auto& plain) -> nb::object { return nb::cast(plain); }, field.get());
  }
  nb::list list;
  for (std::size_t i = 0; i < field.element_count(); ++i) {
    const std::string prefix = fmt::format("{}[{}].", field.key, i);
    std::vector<Field> fields = field.element(i);
    for (Field& of_element : fields) of_element.key.erase(0, prefix.size());
    list.append(keywords_of(fields));
  }
  return list;
}

}  // namespace

void set_keywords(const std::vector<Field>& fields, const nb::dict& keywords, const std::string& prefix) {
  for (const auto& [name, value] : keywords) {
    const std::string key = prefix + text_of(name);
    if (value.is_none()) continue;
    const bool is_list = std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
      return field.kind == FieldKind::tables && field.key == key;
    });
    if (!is_list && nb::isinstance<nb::dict>(value)) {
      set_keywords(fields, nb::borrow<nb::dict>(value), key + ".");
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

nb::dict keywords_of(const std::vector<Field>& fields) {
  nb::dict all;
  for (const Field& field : fields) {
    nb::dict table = all;
    std::string name = field.key;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
      const nb::str outer = str_of(name.substr(0, dot));
      if (!table.contains(outer)) table[outer] = nb::dict();
      table = nb::borrow<nb::dict>(table[outer]);
      name = name.substr(dot + 1);
    }
    table[str_of(name)] = keyword_value(field);
  }
  return all;
}

}  // namespace headrace::python
