#include <headrace/option_tables.h>

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace headrace {

std::vector<Field> named_element(const Field& tables, std::size_t i, const OptionValue& name) {
  tables.element(i).front().set(name);
  return tables.element(i);
}

std::vector<Field> named_defaults(const Field& tables, const std::string& name) {
  tables.element_defaults().front().set(name);
  return tables.element_defaults();
}

std::vector<Field> with_elements(std::vector<Field> fields) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].kind != FieldKind::tables) continue;
    for (std::size_t element = fields[i].element_count(); element > 0; --element) {
      std::vector<Field> of_element = fields[i].element(element - 1);
      const auto place = fields.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      fields.insert(place, std::make_move_iterator(of_element.begin()), std::make_move_iterator(of_element.end()));
    }
  }
  return fields;
}

namespace {

std::string value_toml(const Field& field) {
  return field.kind == FieldKind::tables ? tables_toml(field) : to_toml(field.get());
}

// `prefix`: of their keys, what all have before the names that the table gives them.
std::string table_toml(const std::vector<Field>& fields, const std::vector<Field>& defaults,
                       const std::string& prefix) {
  std::string out;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::string value = value_toml(fields[i]);
    if (value == value_toml(defaults[i]) && !fields[i].required) continue;
    out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", fields[i].key.substr(prefix.size()), value);
  }
  return "{" + out + "}";
}

}  // namespace

std::string tables_toml(const Field& tables) {
  std::string out;
  for (std::size_t i = 0; i < tables.element_count(); ++i) {
    const std::vector<Field> fields = tables.element(i);
    const bool is_named = !tables.choices.empty() && fields.size() > 1;
    const std::vector<Field> defaults =
        is_named ? named_defaults(tables, std::get<std::string>(fields.front().get())) : tables.element_defaults();
    out += (out.empty() ? "" : ", ") + table_toml(fields, defaults, fmt::format("{}[{}].", tables.key, i));
  }
  return "[" + out + "]";
}

}  // namespace headrace
