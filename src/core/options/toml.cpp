// Recipes in and out: TOML through toml++, guided by the fields alone.

// Numbers are read by std::from_chars, which knows no locale; toml++ 3.3 leaves that off for every g++ and clang.
#define TOML_FLOAT_CHARCONV 1
// toml++ 3.3 asserts what the document decides, such as that a key follows "[", and under NDEBUG lets the compiler take
// it for granted. With neither, its parser reports the fault.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#include <headrace/option_tables.h>
#include <headrace/option_text.h>

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "core/base/utf8.h"
#include "core/options/keys.h"

namespace headrace {
namespace {

constexpr std::size_t kDocumentBytesMax = 1 << 20;
// toml++ frees nested tables by recursion, and a.a.a.a nests without the limit that it sets brackets. No recipe comes
// near.
constexpr std::ptrdiff_t kDocumentDotsMax = 2048;

struct Entry {
  std::string key;
  const toml::node* node;
};

struct Document {
  const std::vector<Field>& fields;
  std::string_view source;
};

[[noreturn]] void refuse(std::string_view source, const toml::source_region& region, const std::string& message) {
  fail(ErrorCode::invalid_argument, "{}:{}: {}", source, region.begin.line, message);
}

bool is_table_of(const std::vector<Field>& fields, const std::string& key) {
  const std::string prefix = key + ".";
  return std::any_of(fields.begin(), fields.end(), [&](const Field& field) { return field.key.rfind(prefix, 0) == 0; });
}

// Every table that the fields stand in: "data", "data.transform".
std::vector<std::string> tables_of(const std::vector<Field>& fields) {
  std::vector<std::string> tables;
  for (const Field& field : fields) {
    for (std::size_t dot = field.key.find('.'); dot != std::string::npos; dot = field.key.find('.', dot + 1)) {
      const std::string table = field.key.substr(0, dot);
      if (std::find(tables.begin(), tables.end(), table) == tables.end()) tables.push_back(table);
    }
  }
  return tables;
}

std::string describe_node(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  std::ostringstream text;
  text.imbue(std::locale::classic());
  node.visit([&text](const auto& value) { text << value; });
  return text.str();
}

template <class T>
std::optional<std::vector<T>> list_of(const toml::array& array) {
  std::vector<T> values;
  for (const toml::node& element : array) {
    const bool fits = std::is_same_v<T, double>         ? element.is_number()
                      : std::is_same_v<T, std::int64_t> ? element.is_integer()
                                                        : element.is_string();
    if (!fits) return std::nullopt;
    values.push_back(*element.value<T>());
  }
  return values;
}

// The node as the type nearest to what the field takes, or nullopt when no option has such a type (a date, a table).
std::optional<OptionValue> option_value(const toml::node& node, FieldKind kind) {
  if (node.is_boolean()) return *node.value<bool>();
  if (node.is_integer()) return *node.value<std::int64_t>();
  if (node.is_floating_point()) return *node.value<double>();
  if (node.is_string()) return *node.value<std::string>();
  if (const toml::array* array = node.as_array()) {
    if (kind == FieldKind::integers) return list_of<std::int64_t>(*array);
    if (kind == FieldKind::reals) return list_of<double>(*array);
    if (kind == FieldKind::texts) return list_of<std::string>(*array);
  }
  return std::nullopt;
}

// Leaves of the document under `table`: values, and whatever stands where no table of the fields is.
void collect_entries(const std::vector<Field>& fields, const toml::table& table, const std::string& prefix,
                     std::vector<Entry>& entries) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    // A key with dots in quotes is another key than the path that it looks like.
    const bool plain = name.str().find('.') == std::string_view::npos;
    const toml::table* nested = node.as_table();
    if (plain && nested != nullptr && is_table_of(fields, key)) {
      collect_entries(fields, *nested, key + ".", entries);
    } else {
      entries.push_back({plain ? key : prefix + "\"" + std::string(name.str()) + "\"", &node});
    }
  }
}

[[noreturn]] void refuse_unknown(const Document& document, const Entry& entry) {
  const bool table = entry.node->is_table();
  if (!table && is_table_of(document.fields, entry.key)) {
    refuse(document.source, entry.node->source(),
           fmt::format("{} must be a table, found {}", entry.key, describe_node(*entry.node)));
  }
  if (!table) {
    refuse(document.source, entry.node->source(),
           fmt::format("unknown key {}{}", entry.key, advice_on_key(document.fields, entry.key)));
  }
  const std::vector<std::string> tables = tables_of(document.fields);
  if (const std::string now = current_name(entry.key); now != entry.key) {
    refuse(document.source, entry.node->source(), fmt::format("unknown table {}, which is now {}", entry.key, now));
  }
  const auto same_end = std::find_if(tables.begin(), tables.end(), [&](const std::string& known) {
    return known.ends_with("." + entry.key);  // "transform" for "data.transform".
  });
  const std::string nearest = same_end != tables.end() ? *same_end : nearest_name(tables, entry.key);
  refuse(document.source, entry.node->source(),
         fmt::format("unknown table {}{}", entry.key,
                     nearest.empty() ? fmt::format("; the tables are {}", fmt::join(tables, ", "))
                                     : fmt::format(", did you mean {}?", nearest)));
}

// Of element i, whose key `name` says which fields it has, wherever it stands in the table.
std::vector<Field> named_fields(const Document& document, const Field& field, std::size_t i, const toml::table& table) {
  const std::string key = fmt::format("{}[{}].name", field.key, i);
  const toml::node* const name = table.get("name");
  if (name == nullptr) {
    refuse(document.source, table.source(),
           fmt::format("{} is missing; wanted {}", key, fmt::join(field.choices, " | ")));
  }
  const std::optional<OptionValue> value = option_value(*name, FieldKind::choice);
  if (!value) {
    refuse(document.source, name->source(),
           fmt::format("{} must be {}, found {}", key, fmt::join(field.choices, " | "), describe_node(*name)));
  }
  try {
    return named_element(field, i, *value);
  } catch (const Error& error) {
    refuse(document.source, name->source(), error.what());
  }
}

void read_entries(const Document& document, const toml::table& table, const std::string& prefix,
                  std::vector<KeyLine>& lines);

void read_tables(const Document& document, const Field& field, const toml::node& node, std::vector<KeyLine>& lines) {
  const toml::array* array = node.as_array();
  if (array == nullptr) {
    refuse(document.source, node.source(),
           fmt::format("{} must be a list of tables ([[{}]]), found {}", field.key, field.key, describe_node(node)));
  }
  field.clear_elements();
  for (std::size_t i = 0; i < array->size(); ++i) {
    const toml::node& element = *array->get(i);
    if (!element.is_table()) {
      refuse(document.source, element.source(),
             fmt::format("{}[{}] must be a table, found {}", field.key, i, describe_node(element)));
    }
    const toml::table& table = *element.as_table();
    const std::vector<Field> element_fields =
        field.choices.empty() ? field.element(i) : named_fields(document, field, i, table);
    read_entries({element_fields, document.source}, table, fmt::format("{}[{}].", field.key, i), lines);
  }
}

void read_entry(const Document& document, const Entry& entry, std::vector<KeyLine>& lines) {
  const auto field = std::find_if(document.fields.begin(), document.fields.end(),
                                  [&](const Field& known) { return known.key == entry.key; });
  if (field == document.fields.end()) refuse_unknown(document, entry);
  lines.push_back({entry.key, static_cast<std::int64_t>(entry.node->source().begin.line)});
  if (field->kind == FieldKind::tables) {
    read_tables(document, *field, *entry.node, lines);
    return;
  }
  const std::optional<OptionValue> value = option_value(*entry.node, field->kind);
  if (!value) {
    const bool list = entry.node->is_array() && (field->kind == FieldKind::integers ||
                                                 field->kind == FieldKind::reals || field->kind == FieldKind::texts);
    refuse(document.source, entry.node->source(),
           fmt::format("{} must be {}, found {}", entry.key, wanted_words(field->kind),
                       list ? "something else in it" : describe_node(*entry.node)));
  }
  try {
    field->set(*value);
  } catch (const Error& error) {
    refuse(document.source, entry.node->source(), error.what());
  }
}

void read_entries(const Document& document, const toml::table& table, const std::string& prefix,
                  std::vector<KeyLine>& lines) {
  std::vector<Entry> entries;
  collect_entries(document.fields, table, prefix, entries);
  // toml++ sorts by name; a reader expects the first fault in the file.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const toml::source_position &left = a.node->source().begin, &right = b.node->source().begin;
    return std::tie(left.line, left.column) < std::tie(right.line, right.column);
  });
  for (const Entry& entry : entries) read_entry(document, entry, lines);
}

// "tune.planted[1].shape" -> "tune.planted.shape": how a header names a table within an array of tables.
std::string without_indices(const std::string& key) {
  std::string out;
  bool inside = false;
  for (const char c : key) {
    if (c == '[') inside = true;
    if (!inside) out += c;
    if (c == ']') inside = false;
  }
  return out;
}

using Comment = std::function<std::string(const std::string&)>;

void append_value(std::string& out, const std::string& key, const std::string& value, const Comment& comment) {
  out += key.substr(key.rfind('.') + 1) + " = " + value;
  std::string note = comment ? comment(key) : "";
  std::replace(note.begin(), note.end(), '\n', ' ');
  out += note.empty() ? "\n" : "  # " + note + "\n";
}

// `header` is this list's own line ("[[tune.planted]]") and empty for a whole document.
void append_tables(std::string& out, const std::vector<Field>& fields, const std::string& own_table,
                   const Comment& comment) {
  std::vector<std::string> tables{own_table};  // Values of the root come before any header.
  for (const Field& field : fields) {
    const std::string table = table_of(field.key);
    if (std::find(tables.begin(), tables.end(), table) == tables.end()) tables.push_back(table);
  }
  for (const std::string& table : tables) {
    std::string values;
    for (const Field& field : fields) {
      if (table_of(field.key) != table) continue;
      if (field.kind != FieldKind::tables) {
        append_value(values, field.key, to_toml(field.get()), comment);
      } else if (field.element_count() == 0) {
        append_value(values, field.key, "[]", comment);
      }
    }
    if (table != own_table && !values.empty())
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", without_indices(table));
    out += values;
  }
  for (const Field& field : fields) {
    if (field.kind != FieldKind::tables) continue;
    const std::size_t count = field.element_count();
    for (std::size_t i = 0; i < count; ++i) {
      out += fmt::format("{}[[{}]]\n", out.empty() ? "" : "\n", without_indices(field.key));
      append_tables(out, field.element(i), fmt::format("{}[{}]", field.key, i), comment);
    }
  }
}

// Behind the string that begins at `place`, or the text's end. Stops at an escape that is none.
std::size_t string_end(std::string_view text, std::size_t place) {
  const char quote = text[place];
  const std::string_view three = quote == '"' ? "\"\"\"" : "'''";
  const bool is_long = text.substr(place, 3) == three;
  for (place += is_long ? 3 : 1; place < text.size(); ++place) {
    if (quote == '"' && text[place] == '\\') {
      if (++place < text.size() && static_cast<unsigned char>(text[place]) >= 0x80) return place;
    } else if (is_long && text.substr(place, 3) == three) {
      place += 3;
      for (int more = 0; more < 2 && place < text.size() && text[place] == quote; ++more) ++place;
      return place;
    } else if (!is_long && (text[place] == quote || text[place] == '\n')) {
      return place + 1;
    }
  }
  return text.size();
}

// The first character outside of strings and comments that is not ASCII, where TOML allows none; npos: there is none.
// toml++ 3.3 has undefined behaviour for U+00A1 to U+0499 there (is_non_ascii_horizontal_whitespace).
std::size_t find_stray_character(std::string_view text) {
  for (std::size_t place = 0; place < text.size();) {
    if (static_cast<unsigned char>(text[place]) >= 0x80) return place;
    if (text[place] == '#') {
      place = std::min(text.find('\n', place), text.size());
    } else if (text[place] == '"' || text[place] == '\'') {
      place = string_end(text, place);
    } else {
      ++place;
    }
  }
  return std::string_view::npos;
}

std::int64_t line_of(std::string_view text, std::size_t place) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(place), '\n');
}

}  // namespace

std::vector<KeyLine> read_toml(const std::vector<Field>& fields, std::string_view text, std::string_view source) {
  if (text.size() > kDocumentBytesMax) {
    fail(ErrorCode::invalid_argument, "{}:1: {} bytes, a recipe may have {}", source, text.size(), kDocumentBytesMax);
  }
  if (const std::size_t place = utf8_text_length(text); place != text.size()) {
    fail(ErrorCode::invalid_argument, "{}:{}: byte 0x{:02x} is not UTF-8 text", source, line_of(text, place),
         static_cast<unsigned>(static_cast<unsigned char>(text[place])));
  }
  const std::string_view after_mark = text.substr(text.rfind("\xEF\xBB\xBF", 0) == 0 ? 3 : 0);
  if (const std::size_t stray = find_stray_character(after_mark); stray != std::string_view::npos) {
    const std::string_view rest = after_mark.substr(stray);
    const std::size_t length = rest[0] < '\xE0' ? 2 : rest[0] < '\xF0' ? 3 : 4;
    fail(ErrorCode::invalid_argument, "{}:{}: '{}' outside of quotes and comments", source, line_of(after_mark, stray),
         rest.substr(0, length));
  }
  if (std::count(text.begin(), text.end(), '.') > kDocumentDotsMax) {
    fail(ErrorCode::invalid_argument, "{}:1: more than {} dots; no recipe nests that deep", source, kDocumentDotsMax);
  }
  try {
    const toml::table root = toml::parse(text);
    std::vector<KeyLine> lines;
    read_entries({fields, source}, root, "", lines);
    return lines;
  } catch (const toml::parse_error& error) {
    refuse(source, error.source(), std::string(error.description()));
  }
}

std::string write_toml(const std::vector<Field>& fields,
                       const std::function<std::string(const std::string&)>& comment) {
  std::string out;
  append_tables(out, fields, "", comment);
  return out;
}

}  // namespace headrace
