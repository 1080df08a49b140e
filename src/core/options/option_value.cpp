// Values as text and back, and how each kind of option is read and set.
#include <headrace/option_fields.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "core/base/utf8.h"
#include "core/options/keys.h"

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
  std::string operator()(const std::vector<std::int64_t>& values) const {
    return list_text(values, [](std::int64_t value) { return std::to_string(value); });
  }
  std::string operator()(const std::vector<double>& values) const { return list_text(values, real_text); }
  std::string operator()(const std::vector<std::string>& values) const { return list_text(values, quoted); }
};

[[noreturn]] void wrong_type(const std::string& key, FieldKind wanted, const std::string& found) {
  fail(ErrorCode::invalid_argument, "{} must be {}, found {}", key, wanted_words(wanted), found);
}

[[noreturn]] void out_of_range(const std::string& key, const std::string& range, const std::string& found) {
  fail(ErrorCode::invalid_argument, "{} must be {}, found {}", key, range, found);
}

// Whether a value is a whole number's AUTOTUNE.
bool is_auto(const OptionValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto* number = std::get_if<std::int64_t>(&value);
  return (text != nullptr && *text == kAuto) || (number != nullptr && *number == AUTOTUNE);
}

void check_text(const std::string& key, const std::string& text) {
  const std::size_t place = utf8_text_length(text);
  if (place == text.size()) return;
  fail(ErrorCode::invalid_argument, "{} must be UTF-8 text without NUL, found byte 0x{:02x}", key,
       static_cast<unsigned>(static_cast<unsigned char>(text[place])));
}

template <class Number>
void set_bounds(Field& field, const Range<Number>* range) {
  if (range == nullptr) return;
  field.low = static_cast<double>(range->low);
  field.high = static_cast<double>(range->high);
  field.range = fmt::format("{} to {}", range->low, range->high);
}

// What holds for a real number: finite, and in the field's range.
class RealCheck {
 public:
  explicit RealCheck(const Field& field) : key_(field.key), range_(field.range), low_(field.low), high_(field.high) {}
  void operator()(double value) const {
    if (!std::isfinite(value)) out_of_range(key_, range_.empty() ? "a finite number" : range_, real_text(value));
    if (value < low_ || value > high_) out_of_range(key_, range_, real_text(value));
  }

 private:
  std::string key_, range_;
  double low_, high_;
};

template <class Number>
Range<Number> bounds_of(const Range<Number>* range) {
  if (range != nullptr) return *range;
  return {std::numeric_limits<Number>::lowest(), std::numeric_limits<Number>::max()};
}

// The place of a value among the field's choices. Error{invalid_argument}: it is none of them.
std::size_t place_of_choice(const Field& field, const OptionValue& value) {
  for (std::size_t i = 0; i < field.choices.size(); ++i) {
    if (detail::choice_value(field.choices[i]) == value || OptionValue{field.choices[i]} == value) return i;
  }
  if (!std::holds_alternative<std::string>(value)) out_of_range(field.key, field.range, to_toml(value));
  const std::string& found = std::get<std::string>(value);
  const std::string now = current_choice(field.key, found);
  if (std::find(field.choices.begin(), field.choices.end(), now) != field.choices.end()) {
    fail(ErrorCode::invalid_argument, "{} must be {}, found {}, which is now {}", field.key, field.range, quoted(found),
         quoted(now));
  }
  const std::string nearest = nearest_name(field.choices, found);
  fail(ErrorCode::invalid_argument, "{} must be {}, found {}{}", field.key, field.range, quoted(found),
       nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest));
}

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
  if (error != std::errc{} || stop != end) wrong_type(field.key, wanted, quoted(text));
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

template <class Number>
std::vector<Number> parse_numbers(const Field& field, std::string_view text) {
  std::vector<Number> values;
  for (const std::string& part : split_at_commas(text)) {
    values.push_back(parse_number<Number>(field, field.kind, part));
  }
  return values;
}

}  // namespace

std::string to_toml(const OptionValue& value) {
  return std::visit(TomlText{}, value);
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
    case FieldKind::integers:
      return "a whole number or a list of them";
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

OptionValue parse_option(const Field& field, std::string_view text) {
  switch (field.kind) {
    case FieldKind::boolean:
      if (text == "true") return true;
      if (text == "false") return false;
      wrong_type(field.key, field.kind, quoted(text));
    case FieldKind::integer:
      if (field.or_auto && !looks_like_number(text)) return std::string(text);  // "auto", or refused with the range.
      return parse_number<std::int64_t>(field, field.kind, text);
    case FieldKind::real:
      return parse_number<double>(field, field.kind, text);
    case FieldKind::text:
    case FieldKind::choice:
      return std::string(text);
    case FieldKind::integers:
      return parse_numbers<std::int64_t>(field, text);
    case FieldKind::reals:
      return parse_numbers<double>(field, text);
    case FieldKind::texts:
      return split_at_commas(text);
    case FieldKind::tables:
      break;
  }
  wrong_type(field.key, field.kind, quoted(text));
}

OptionValue detail::choice_value(std::string_view name) {
  if (name == "true" || name == "false") return name == "true";
  return std::string(name);
}

Field& detail::FieldCollector::add(const char* name, const char* sentence) {
  Field field;
  field.key = prefix_ + name;
  field.sentence = sentence;
  return out_.emplace_back(std::move(field));
}

void detail::bind_field(Field& field, bool& value) {
  field.kind = FieldKind::boolean;
  field.get = [&value] { return OptionValue{value}; };
  field.set = [&value, key = field.key](const OptionValue& v) {
    if (!std::holds_alternative<bool>(v)) wrong_type(key, FieldKind::boolean, to_toml(v));
    value = std::get<bool>(v);
  };
}

void detail::bind_field(Field& field, std::string& value) {
  field.kind = FieldKind::text;
  field.get = [&value] { return OptionValue{value}; };
  field.set = [&value, key = field.key](const OptionValue& v) {
    if (!std::holds_alternative<std::string>(v)) wrong_type(key, FieldKind::text, to_toml(v));
    check_text(key, std::get<std::string>(v));
    value = std::get<std::string>(v);
  };
}

void detail::bind_field(Field& field, std::vector<std::string>& value) {
  field.kind = FieldKind::texts;
  field.get = [&value] { return OptionValue{value}; };
  field.set = [&value, key = field.key](const OptionValue& v) {
    if (!std::holds_alternative<std::vector<std::string>>(v)) wrong_type(key, FieldKind::texts, to_toml(v));
    for (const std::string& text : std::get<std::vector<std::string>>(v)) check_text(key, text);
    value = std::get<std::vector<std::string>>(v);
  };
}

void detail::bind_field(Field& field, std::int64_t& value, const Range<std::int64_t>* range) {
  field.kind = FieldKind::integer;
  set_bounds(field, range);
  const Range<std::int64_t> bounds = bounds_of(range);
  field.or_auto = bounds.or_auto;
  if (bounds.or_auto) field.range += ", or \"auto\"";
  field.get = [&value, or_auto = bounds.or_auto] {
    return or_auto && value == AUTOTUNE ? OptionValue{std::string(kAuto)} : OptionValue{value};
  };
  field.set = [&value, key = field.key, bounds, words = field.range](const OptionValue& v) {
    if (bounds.or_auto && is_auto(v)) {
      value = AUTOTUNE;
      return;
    }
    const bool is_number = std::holds_alternative<std::int64_t>(v);
    if (!is_number && bounds.or_auto) out_of_range(key, words, to_toml(v));
    if (!is_number) wrong_type(key, FieldKind::integer, to_toml(v));
    const std::int64_t x = std::get<std::int64_t>(v);
    if (x < bounds.low || x > bounds.high) out_of_range(key, words, to_toml(v));
    value = x;
  };
}

void detail::bind_field(Field& field, double& value, const Range<double>* range) {
  field.kind = FieldKind::real;
  set_bounds(field, range);
  field.get = [&value] { return OptionValue{value}; };
  field.set = [&value, key = field.key, check = RealCheck(field)](const OptionValue& v) {
    double x = 0;
    if (const auto* real = std::get_if<double>(&v)) {
      x = *real;
    } else if (const auto* whole = std::get_if<std::int64_t>(&v)) {
      x = static_cast<double>(*whole);
    } else {
      wrong_type(key, FieldKind::real, to_toml(v));
    }
    check(x);
    value = x;
  };
}

void detail::bind_field(Field& field, std::vector<std::int64_t>& value, const Range<std::int64_t>* range) {
  field.kind = FieldKind::integers;
  set_bounds(field, range);
  field.get = [&value] { return OptionValue{value}; };
  field.set = [&value, key = field.key, bounds = bounds_of(range), words = field.range](const OptionValue& v) {
    const auto* const one = std::get_if<std::int64_t>(&v);
    const auto* const many = std::get_if<std::vector<std::int64_t>>(&v);
    if (one == nullptr && many == nullptr) wrong_type(key, FieldKind::integers, to_toml(v));
    std::vector<std::int64_t> found = many != nullptr ? *many : std::vector{*one};
    for (const std::int64_t x : found) {
      if (x < bounds.low || x > bounds.high) out_of_range(key, words, std::to_string(x));
    }
    value = std::move(found);
  };
}

void detail::bind_names(Field& field, std::vector<std::string> names, std::function<std::string()> held,
                        std::function<void(std::size_t)> hold) {
  field.kind = FieldKind::choice;
  field.range = fmt::format("{}", fmt::join(names, " | "));
  field.choices = std::move(names);
  field.get = [held = std::move(held)] { return choice_value(held()); };
  field.set = [hold = std::move(hold), checked = Field{field}](const OptionValue& v) {
    hold(place_of_choice(checked, v));
  };
}

void detail::bind_field(Field& field, std::vector<double>& value, const Range<double>* range) {
  field.kind = FieldKind::reals;
  set_bounds(field, range);
  field.get = [&value] { return OptionValue{value}; };
  field.set = [&value, key = field.key, check = RealCheck(field)](const OptionValue& v) {
    if (!std::holds_alternative<std::vector<double>>(v)) wrong_type(key, FieldKind::reals, to_toml(v));
    for (const double x : std::get<std::vector<double>>(v)) check(x);
    value = std::get<std::vector<double>>(v);
  };
}

}  // namespace headrace
