// docs/options.md and the JSON schema, from the same fields as everything else.
#include <fmt/format.h>
#include <headrace/option_tables.h>
#include <headrace/option_text.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>
#include "core/options/keys.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

// A cell of a Markdown table: a bar would end it.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void append_rows(std::string& out, const std::vector<Field>& fields, const std::string& table) {
  out += "| key | type | default | range | what it does |\n|---|---|---|---|---|\n";
  for (const Field& field : fields) {
    if (table_of(field.key) != table) continue;
    const std::string value = field.kind == FieldKind::tables ? "[]" : to_toml(field.get());
    const bool is_switch = !field.choices.empty() && field.choices.front() == "false";
    const char* words = is_switch ? "true, false or auto" : wanted_words(field.kind);
    const std::string standard = field.required ? "none" : "`" + cell(value) + "`";
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.key, words, standard, cell(field.range),
                       cell(field.sentence));
  }
}

// The list among these whose tables are told for this one, too; null: there is none before it.
const Field* same_before(const std::vector<Field>& fields, const Field& field) {
  if (field.kind != FieldKind::tables || field.choices.empty()) return nullptr;
  const auto same = std::find_if(fields.begin(), fields.end(), [&](const Field& other) {
    return other.kind == FieldKind::tables && other.choices == field.choices;
  });
  return same == fields.end() || same->key == field.key ? nullptr : &*same;
}

// A section for each of the structs that a table may be.
void append_named(std::string& out, const Field& field) {
  for (const std::string& name : field.choices) {
    std::vector<Field> fields = named_defaults(field, name);
    out += fmt::format("{}### name = \"{}\"\n\n{}\n\n", name == field.choices.front() ? "" : "\n", name,
                       fields.front().sentence);
    fields.erase(fields.begin());
    append_rows(out, fields, field.key + "[]");
  }
}

void append_sections(std::string& out, const std::vector<Field>& fields, const std::string& own_table) {
  std::vector<std::string> tables;
  for (const Field& field : fields) {
    const std::string table = table_of(field.key);
    if (std::find(tables.begin(), tables.end(), table) != tables.end()) continue;
    tables.push_back(table);
    if (table != own_table) out += fmt::format("\n## [{}]\n\n", table);
    append_rows(out, fields, table);
  }
  for (const Field& field : fields) {
    if (field.kind != FieldKind::tables) continue;
    out += fmt::format("\n## [[{}]]\n\n{}\n\n", field.key, field.sentence);
    if (const Field* const same = same_before(fields, field)) {
      out += fmt::format("Its tables are those of [[{}]].\n", same->key);
    } else if (!field.choices.empty()) {
      append_named(out, field);
    } else {
      append_sections(out, field.element_defaults(), field.key + "[]");
    }
  }
}

Json json_value(const OptionValue& value) {
  return std::visit([](const auto& held) { return Json(held); }, value);
}

template <class Number>
void append_bounds(Json& schema, const Field& field) {
  if (std::isfinite(field.low)) schema["minimum"] = static_cast<Number>(field.low);
  if (std::isfinite(field.high)) schema["maximum"] = static_cast<Number>(field.high);
}

Json object_schema(const std::vector<Field>& fields, const std::string& prefix);

// One of several objects, told apart by the key `name`.
Json named_schema(const Field& field) {
  Json structs = Json::array();
  for (const std::string& name : field.choices) {
    const std::vector<Field> fields = named_defaults(field, name);
    Json schema = object_schema(fields, field.key + "[].");
    schema["properties"]["name"] = {{"description", fields.front().sentence}, {"const", name}};
    structs.push_back(std::move(schema));
  }
  return {{"oneOf", std::move(structs)}};
}

Json field_schema(const Field& field) {
  Json schema;
  schema["description"] = field.sentence;
  switch (field.kind) {
    case FieldKind::boolean:
      schema["type"] = "boolean";
      break;
    case FieldKind::integer:
      schema["type"] = "integer";
      append_bounds<std::int64_t>(schema, field);
      if (field.or_auto) {
        schema["type"] = {"integer", "string"};
        schema["pattern"] = "^auto$";  // Of the text; minimum and maximum speak of numbers alone.
      }
      break;
    case FieldKind::real:
      schema["type"] = "number";
      append_bounds<double>(schema, field);
      break;
    case FieldKind::text:
      schema["type"] = "string";
      break;
    case FieldKind::choice:
      schema["enum"] = Json::array();
      for (const std::string& name : field.choices) schema["enum"].push_back(json_value(detail::choice_value(name)));
      break;
    case FieldKind::integers:
      schema["type"] = {"integer", "array"};  // minimum and maximum speak of a number alone, items of an array.
      append_bounds<std::int64_t>(schema, field);
      schema["items"] = {{"type", "integer"}};
      append_bounds<std::int64_t>(schema["items"], field);
      break;
    case FieldKind::reals:
      schema["type"] = "array";
      schema["items"] = {{"type", "number"}};
      append_bounds<double>(schema["items"], field);
      break;
    case FieldKind::texts:
      schema["type"] = "array";
      schema["items"] = {{"type", "string"}};
      break;
    case FieldKind::tables:
      schema["type"] = "array";
      schema["items"] =
          field.choices.empty() ? object_schema(field.element_defaults(), field.key + "[].") : named_schema(field);
      schema["default"] = Json::array();
      return schema;
  }
  if (!field.required) schema["default"] = json_value(field.get());
  return schema;
}

// Where the schema has what the elements of a list are: "#/properties/data/properties/transforms/items".
std::string items_pointer(const std::string& key) {
  std::string pointer = "#";
  for (std::size_t begin = 0; begin != std::string::npos;) {
    const std::size_t dot = key.find('.', begin);
    pointer += "/properties/" + key.substr(begin, dot - begin);
    begin = dot == std::string::npos ? dot : dot + 1;
  }
  return pointer + "/items";
}

// The object of all fields under `prefix`, nested ones by their dots.
Json object_schema(const std::vector<Field>& fields, const std::string& prefix) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& field : fields) {
    if (field.key.rfind(prefix, 0) != 0) continue;
    const std::string rest = field.key.substr(prefix.size());
    const std::size_t dot = rest.find('.');
    const std::string name = rest.substr(0, dot);
    if (properties.contains(name)) continue;
    if (dot != std::string::npos) {
      properties[name] = object_schema(fields, prefix + name + ".");
      continue;
    }
    properties[name] = field_schema(field);
    if (field.required) required.push_back(name);
    if (const Field* const same = same_before(fields, field)) {
      properties[name]["items"] = {{"$ref", items_pointer(same->key)}};
    }
  }
  Json schema = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

}  // namespace

std::string options_markdown(const std::vector<Field>& fields, std::string_view title) {
  std::string out = fmt::format("# {}\n\n", title);
  append_sections(out, fields, "");
  return out;
}

std::string options_schema(const std::vector<Field>& fields, std::string_view title) {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}};
  schema.update(object_schema(fields, ""));
  return schema.dump(2);
}

}  // namespace headrace
