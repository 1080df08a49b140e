// Values as text and back, and the words of the errors that Field::set throws.
#include <headrace/options.h>

#include <charconv>
#include <cmath>

#include "core/options/keys.h"
#include "core/options/utf8.h"

namespace headrace {
namespace {

constexpr std::string_view kAuto = "auto";

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

// Shortest text that reads back as the same bits, with a point or an exponent so that TOML sees a real number.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <class T, class Text>
std::string list_text(const std::vector<T>& values, Text text) {
  std::string out;
  for (const T& value : values) out += (out.empty() ? "" : ", ") + text(value);
  return "[" + out + "]";
}

struct TomlText {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return real_text(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<double>& values) const { return list_text(values, real_text); }
  std::string operator()(const std::vector<std::string>& values) const { return list_text(values, quoted); }
};

template <class Number>
Number parse_number(const Field& field, FieldKind wanted, std::string_view text) {
  std::string_view digits = text;
  if (digits.size() > 1 && digits.front() == '+' && digits[1] != '-') digits.remove_prefix(1);
  Number value{};
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error == std::errc::result_out_of_range && stop == end) {
    fail(ErrorCode::invalid_argument, "{}: {} does not fit in 64 bits", field.key, text);
  }
  if (error != std::errc{} || stop != end) detail::wrong_type(field.key, wanted, quoted(text));
  return value;
}

bool looks_like_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("+-0123456789") == std::string_view::npos;
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (std::size_t begin = 0;;) {
    const std::size_t comma = text.find(',', begin);
    parts.emplace_back(text.substr(begin, comma - begin));
    if (comma == std::string_view::npos) return parts;
    begin = comma + 1;
  }
}

}  // namespace

std::string to_toml(const OptionValue& value) {
  return std::visit(TomlText{}, value);
}

OptionValue parse_option(const Field& field, std::string_view text) {
  switch (field.kind) {
    case FieldKind::boolean:
      if (text == "true") return true;
      if (text == "false") return false;
      detail::wrong_type(field.key, field.kind, quoted(text));
    case FieldKind::integer:
      if (field.or_auto && !looks_like_number(text)) return std::string(text);  // "auto", or refused with the range.
      return parse_number<std::int64_t>(field, field.kind, text);
    case FieldKind::real:
      return parse_number<double>(field, field.kind, text);
    case FieldKind::text:
    case FieldKind::choice:
      return std::string(text);
    case FieldKind::reals: {
      std::vector<double> values;
      for (const std::string& part : split_at_commas(text)) {
        values.push_back(parse_number<double>(field, field.kind, part));
      }
      return values;
    }
    case FieldKind::texts:
      return split_at_commas(text);
    case FieldKind::tables:
      break;
  }
  detail::wrong_type(field.key, field.kind, quoted(text));
}

const char* wanted_words(FieldKind kind) {
  switch (kind) {
    case FieldKind::boolean:
      return "true or false";
    case FieldKind::integer:
      return "a whole number";
    case FieldKind::real:
      return "a number";
    case FieldKind::text:
      return "text";
    case FieldKind::choice:
      return "one of its names";
    case FieldKind::reals:
      return "a list of numbers";
    case FieldKind::texts:
      return "a list of texts";
    case FieldKind::tables:
      return "a list of tables";
  }
  HEADRACE_CHECK(false, "options: a kind of field without words");
  return "";
}

OptionValue detail::number_or_auto(std::int64_t value) {
  if (value == AUTOTUNE) return std::string(kAuto);
  return value;
}

OptionValue detail::choice_value(std::string_view name) {
  if (name == "true" || name == "false") return name == "true";
  return std::string(name);
}

bool detail::is_auto(const OptionValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto* number = std::get_if<std::int64_t>(&value);
  return (text != nullptr && *text == kAuto) || (number != nullptr && *number == AUTOTUNE);
}

void detail::wrong_type(const std::string& key, FieldKind wanted, const std::string& found) {
  fail(ErrorCode::invalid_argument, "{} must be {}, found {}", key, wanted_words(wanted), found);
}

void detail::out_of_range(const std::string& key, const std::string& range, const std::string& found) {
  fail(ErrorCode::invalid_argument, "{} must be {}, found {}", key, range, found);
}

void detail::unknown_choice(const std::string& key, const std::vector<std::string>& names, const std::string& found) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : " | ") + name;
  const std::string nearest = nearest_name(names, found);
  fail(ErrorCode::invalid_argument, "{} must be {}, found {}{}", key, list, quoted(found),
       nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest));
}

void detail::check_real(const std::string& key, double value, double low, double high, const std::string& range) {
  if (!std::isfinite(value)) out_of_range(key, range.empty() ? "a finite number" : range, real_text(value));
  if (value < low || value > high) out_of_range(key, range, real_text(value));
}

void detail::check_text(const std::string& key, const std::string& text) {
  const std::size_t place = utf8_text_length(text);
  if (place == text.size()) return;
  fail(ErrorCode::invalid_argument, "{} must be UTF-8 text without NUL, found byte 0x{:02x}", key,
       static_cast<unsigned>(static_cast<unsigned char>(text[place])));
}

std::string detail::range_text(std::int64_t low, std::int64_t high) {
  return fmt::format("{} to {}", low, high);
}

std::string detail::range_text(double low, double high) {
  return fmt::format("{} to {}", low, high);
}

}  // namespace headrace
