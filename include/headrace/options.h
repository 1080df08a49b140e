// One list of option names, ranges and sentences for each options struct: its describe().
//
// TOML, command-line flags, docs/options.md, the JSON schema, `explain` and the tuner's knobs all read that list
// through `fields_of`. A struct FooOptions lives in src/<module>/foo_options.h, has a default for every field, and
// beside it:
//
//   template <class Visitor, class Options>
//     requires std::same_as<std::remove_const_t<Options>, FooOptions>
//   void describe(Visitor& visit, Options& o) {
//     visit("batch_size", o.batch_size, Range<std::int64_t>{1, 1'000'000}, "Samples in a batch.");
//     visit("threads", o.threads, Range<std::int64_t>{0, 256, kOrAuto}, "Loader threads.");
//     visit("shuffle", o.shuffle, "Draw a new order each epoch.");            // bool, string, path: no range
//     visit("last_batch", o.last_batch, "What happens to ...");              // enum: see choices() below
//     visit("transform", o.transform, "How a sample becomes a tensor.");     // nested struct: its own describe()
//     visit("planted", o.planted, "Fake knobs ...");                         // std::vector of described structs
//   }
//
// Field types: bool, std::int64_t, double, std::string, an enum with choices(), std::vector<double>,
// std::vector<std::string>, a described struct, a std::vector of a described struct. An enum E gives its names through
// ADL: `constexpr auto choices(E) { return std::array{Choice<E>{E::keep, "keep"}, ...}; }`.
// Numbers are read and written without the locale, and real ones come back bit for bit.
#pragma once

#include <headrace/error.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

// The value of a whole number that the program finds and adapts by itself while it runs. Written "auto" in TOML, flags
// and Python; -1 is taken, too.
inline constexpr std::int64_t AUTOTUNE = -1;
inline constexpr bool kOrAuto = true;

// A choice that may be left to the program. Written true, false or "auto" in TOML, flags and Python.
enum class Switch { off, on, automatic };

// Inclusive on both ends. A NaN never lies in a range.
template <class T>
struct Range {
  T low;
  T high;
  bool or_auto = false;  // AUTOTUNE is a value besides; of whole numbers.
};

template <class E>
struct Choice {
  E value;
  std::string_view name;
};

// The name of an enum's value in its choices(), as TOML and flags write it. A value without one is our own mistake.
template <class E>
constexpr std::string_view choice_name(E value) noexcept {
  for (const Choice<E>& choice : choices(value)) {
    if (choice.value == value) return choice.name;
  }
  HEADRACE_CHECK(false, "options: a value without a name in its choices()");
  return {};
}

using OptionValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<double>, std::vector<std::string>>;

enum class FieldKind { boolean, integer, real, text, choice, reals, texts, tables };

// One option of one object. Refers to that object, which must outlive it.
struct Field {
  std::string key;       // Full path with dots: "data.batch_size".
  std::string sentence;  // What it does, one sentence or two.
  FieldKind kind;
  std::string range;                 // "1 to 1000000", or the choices "keep | drop"; empty: any value of its type.
  std::vector<std::string> choices;  // For kind choice.
  double low = -std::numeric_limits<double>::infinity();  // For integer, real and each element of reals.
  double high = std::numeric_limits<double>::infinity();
  bool or_auto = false;  // For integer: AUTOTUNE is a value, which get() gives as the text "auto".

  std::function<OptionValue()> get;
  // Checks type and range, then assigns. Throws Error{invalid_argument}, whose message begins with the key and says
  // what was wanted and what was found. An integer is accepted where a real is wanted; nothing else is converted. Real
  // numbers must be finite, text must be UTF-8 without NUL.
  std::function<void(const OptionValue&)> set;

  // For kind tables only, where `get` and `set` are empty. The fields of element i ("tune.planted[1].off_ms"), after
  // growing the vector to hold it; growing ends the life of the fields of other elements.
  std::function<std::vector<Field>(std::size_t)> element;
  std::function<std::size_t()> element_count;
  std::function<void()> clear_elements;
  // The fields of an element with its defaults ("tune.planted[].off_ms"), alive as long as this Field.
  std::function<std::vector<Field>()> element_defaults;
};

// A key that a document set, and the line it stands on.
struct KeyLine {
  std::string key;
  std::int64_t line;
};

// ---- Everything below works on lists of fields; src/options/*.cpp ----

constexpr auto choices(Switch) {
  return std::array{Choice<Switch>{Switch::off, "false"}, Choice<Switch>{Switch::on, "true"},
                    Choice<Switch>{Switch::automatic, "auto"}};
}

// The value as TOML writes it: 128, 1e-08, "cosine", [0.5, 1.0].
std::string to_toml(const OptionValue& value);
// A flag's text as this field's type: "true", "512", "1e-3", "cosine", "0.1,0.2". Throws Error{invalid_argument}; for
// kind tables always, because only TOML can write those.
OptionValue parse_option(const Field& field, std::string_view text);
// The known key that `key` was meant to be: one that the field's other programs call so ("learning_rate"), else the
// nearest by edit distance of the last part within a third of its length, in this table or another; empty when none is.
std::string nearest_key(const std::vector<Field>& fields, std::string_view key);
// What the error for an unknown key ends with: ", which is now data.num_workers" of one that an earlier version had, or
// ", did you mean data.batch_size?", or the keys of its table, or the tables there are.
std::string advice_on_key(const std::vector<Field>& fields, std::string_view key);
// The name today of a key, or a table, of an earlier version: retired_names.inc lists them. Any other is its own.
std::string current_name(std::string_view key);
// The same of a setting, value as TOML: a value may have become that of another key.
std::pair<std::string, std::string> current_setting(std::string_view key, std::string_view value);
// The nearest of `names`, or empty when none is near.
std::string nearest_name(const std::vector<std::string>& names, std::string_view name);
// The field of that key; Error{invalid_argument} ends with advice_on_key() when there is none.
const Field& field_named(const std::vector<Field>& fields, std::string_view key);

// Reads a TOML document into the fields; returns the keys it set, in file order, with "tune.planted[0].name" and the
// like after "tune.planted". A fault (syntax, unknown key with the nearest known one, wrong type, value out of range,
// over 1 MiB) is Error{invalid_argument} that begins with `source`:line; the fields are then partly set.
std::vector<KeyLine> read_toml(const std::vector<Field>& fields, std::string_view text, std::string_view source);
// A TOML document with every field, grouped by table, in the order of the fields. `comment(key)` may return a comment
// for a key's line ("tuned: kept, 1.21x") or an empty string.
std::string write_toml(const std::vector<Field>& fields,
                       const std::function<std::string(const std::string&)>& comment = {});
// docs/options.md and the JSON schema (draft 2020-12) of the same list; defaults come from the objects' current values.
std::string options_markdown(const std::vector<Field>& fields, std::string_view title);
nlohmann::ordered_json options_schema(const std::vector<Field>& fields, std::string_view title);

namespace detail {

template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};

struct NullVisitor {
  template <class... Args>
  void operator()(Args&&...) {}
};

template <class T>
concept Described = requires(NullVisitor& visitor, T& options) {
  describe(visitor, options);
};
template <class T>
concept ChoiceEnum = std::is_enum_v<T> && requires(T value) {
  choices(value);
};

// The messages of Field::set. `found` is the value as TOML writes it.
[[noreturn]] void wrong_type(const std::string& key, FieldKind wanted, const std::string& found);
[[noreturn]] void out_of_range(const std::string& key, const std::string& range, const std::string& found);
[[noreturn]] void unknown_choice(const std::string& key, const std::vector<std::string>& names,
                                 const std::string& found);
void check_real(const std::string& key, double value, double low, double high, const std::string& range);
void check_text(const std::string& key, const std::string& text);  // UTF-8 without NUL.
std::string range_text(std::int64_t low, std::int64_t high);
// Of a field that takes AUTOTUNE, too: what it gives, and whether a value says so.
OptionValue number_or_auto(std::int64_t value);
// A choice's value by its name: of those named "true" and "false" a bool, of others the name.
OptionValue choice_value(std::string_view name);
bool is_auto(const OptionValue& value);
std::string range_text(double low, double high);

class FieldCollector {
 public:
  FieldCollector(std::string prefix, std::vector<Field>& out) : prefix_(std::move(prefix)), out_(out) {}

  template <class T>
  void operator()(const char* name, T& value, const char* sentence) {
    add(name, value, sentence, static_cast<const Range<NoRange>*>(nullptr));
  }
  template <class T, class R>
  void operator()(const char* name, T& value, Range<R> range, const char* sentence) {
    add(name, value, sentence, &range);
  }

 private:
  struct NoRange {};
  template <class T, class R>
  void add(const char* name, T& value, const char* sentence, const Range<R>* range);
  template <class R>
  static void add_integer(Field& field, std::int64_t& value, const Range<R>* range);
  template <class T, class R>
  void add_kind(Field& field, T& value, const Range<R>* range);
  template <class E>
  void add_choice(Field& field, E& value);
  template <class Element>
  void add_tables(Field& field, std::vector<Element>& elements);

  std::string prefix_;
  std::vector<Field>& out_;
};

}  // namespace detail

// Every option of `options`, nested ones with dotted keys, in the order of describe().
template <detail::Described Options>
std::vector<Field> fields_of(Options& options, const std::string& prefix = "") {
  std::vector<Field> out;
  detail::FieldCollector collector{prefix, out};
  describe(collector, options);
  return out;
}

template <class T, class R>
void detail::FieldCollector::add(const char* name, T& value, const char* sentence, const Range<R>* range) {
  const std::string key = prefix_ + name;
  if constexpr (Described<T>) {
    FieldCollector nested{key + ".", out_};
    describe(nested, value);
    return;
  } else {
    Field field;
    field.key = key;
    field.sentence = sentence;
    if constexpr (!std::same_as<R, NoRange>) {
      field.low = static_cast<double>(range->low);
      field.high = static_cast<double>(range->high);
      field.range = range_text(range->low, range->high);
    }
    if constexpr (std::constructible_from<OptionValue, const T&>) {
      field.get = [&value] { return OptionValue{value}; };
    }
    add_kind(field, value, range);
    out_.push_back(std::move(field));
  }
}

// What the type decides: the field's kind and its checked assignment.
template <class T, class R>
void detail::FieldCollector::add_kind(Field& field, T& value, const Range<R>* range) {
  const std::string& key = field.key;
  if constexpr (std::same_as<T, bool>) {
    field.kind = FieldKind::boolean;
    field.set = [&value, key](const OptionValue& v) {
      if (!std::holds_alternative<bool>(v)) wrong_type(key, FieldKind::boolean, to_toml(v));
      value = std::get<bool>(v);
    };
  } else if constexpr (std::same_as<T, std::int64_t>) {
    static_assert(std::same_as<R, std::int64_t> || std::same_as<R, NoRange>, "the range must have the option's type");
    add_integer(field, value, range);
  } else if constexpr (std::same_as<T, double>) {
    field.kind = FieldKind::real;
    field.set = [&value, key, low = field.low, high = field.high, words = field.range](const OptionValue& v) {
      double x = 0;
      if (const auto* real = std::get_if<double>(&v)) {
        x = *real;
      } else if (const auto* whole = std::get_if<std::int64_t>(&v)) {
        x = static_cast<double>(*whole);
      } else {
        wrong_type(key, FieldKind::real, to_toml(v));
      }
      check_real(key, x, low, high, words);
      value = x;
    };
  } else if constexpr (std::same_as<T, std::string>) {
    field.kind = FieldKind::text;
    field.set = [&value, key](const OptionValue& v) {
      if (!std::holds_alternative<std::string>(v)) wrong_type(key, FieldKind::text, to_toml(v));
      check_text(key, std::get<std::string>(v));
      value = std::get<std::string>(v);
    };
  } else if constexpr (ChoiceEnum<T>) {
    add_choice(field, value);
  } else if constexpr (std::same_as<T, std::vector<double>>) {
    field.kind = FieldKind::reals;
    field.set = [&value, key, low = field.low, high = field.high, words = field.range](const OptionValue& v) {
      if (!std::holds_alternative<std::vector<double>>(v)) wrong_type(key, FieldKind::reals, to_toml(v));
      for (const double x : std::get<std::vector<double>>(v)) check_real(key, x, low, high, words);
      value = std::get<std::vector<double>>(v);
    };
  } else if constexpr (std::same_as<T, std::vector<std::string>>) {
    field.kind = FieldKind::texts;
    field.set = [&value, key](const OptionValue& v) {
      if (!std::holds_alternative<std::vector<std::string>>(v)) wrong_type(key, FieldKind::texts, to_toml(v));
      for (const std::string& text : std::get<std::vector<std::string>>(v)) check_text(key, text);
      value = std::get<std::vector<std::string>>(v);
    };
  } else {
    static_assert(is_vector<T>::value && Described<typename T::value_type>, "no such kind of option");
    add_tables(field, value);
  }
}

template <class R>
void detail::FieldCollector::add_integer(Field& field, std::int64_t& value, const Range<R>* range) {
  field.kind = FieldKind::integer;
  Range<std::int64_t> bounds{std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  if constexpr (std::same_as<R, std::int64_t>) bounds = *range;
  if (bounds.or_auto) {
    field.or_auto = true;
    field.range += ", or \"auto\"";
    field.get = [&value] { return number_or_auto(value); };
  }
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

template <class E>
void detail::FieldCollector::add_choice(Field& field, E& value) {
  field.kind = FieldKind::choice;
  for (const auto& choice : choices(value)) field.choices.emplace_back(choice.name);
  for (const auto& name : field.choices) field.range += (field.range.empty() ? "" : " | ") + name;
  field.get = [&value] { return choice_value(choice_name(value)); };
  field.set = [&value, key = field.key, names = field.choices, words = field.range](const OptionValue& v) {
    for (const auto& choice : choices(value)) {
      if (choice_value(choice.name) == v || OptionValue{std::string(choice.name)} == v) {
        value = choice.value;
        return;
      }
    }
    if (!std::holds_alternative<std::string>(v)) out_of_range(key, words, to_toml(v));
    unknown_choice(key, names, std::get<std::string>(v));
  };
}

template <class Element>
void detail::FieldCollector::add_tables(Field& field, std::vector<Element>& elements) {
  field.kind = FieldKind::tables;
  field.element = [&elements, key = field.key](std::size_t i) {
    if (elements.size() <= i) elements.resize(i + 1);
    return fields_of(elements[i], key + "[" + std::to_string(i) + "].");
  };
  field.element_count = [&elements] { return elements.size(); };
  field.clear_elements = [&elements] { elements.clear(); };
  // Owners: every copy of this function.
  field.element_defaults = [defaults = std::make_shared<Element>(), key = field.key] {
    return fields_of(*defaults, key + "[].");
  };
}

}  // namespace headrace
