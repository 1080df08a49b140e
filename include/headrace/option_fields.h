// The options of a struct as a list: each by its key, with its range, to be read and set as a value of any kind.
#pragma once

#include <headrace/named_options.h>
#include <headrace/options.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace headrace {

using OptionValue = std::variant<bool, std::int64_t, double, std::string, std::vector<double>, std::vector<std::string>,
                                 std::vector<std::int64_t>>;

enum class FieldKind { boolean, integer, real, text, choice, integers, reals, texts, tables };

// One option of one object. Refers to that object, which must outlive it.
struct Field {
  std::string key;       // Full path with dots: "data.batch_size".
  std::string sentence;  // What it does, one sentence or two.
  FieldKind kind;
  std::string range;                 // "1 to 1000000", or the choices "keep | drop"; empty: any value of its type.
  std::vector<std::string> choices;  // For kind choice; for kind tables the names of their structs, if these have some.
  double low = -std::numeric_limits<double>::infinity();  // For integer, real and each element of integers and reals.
  double high = std::numeric_limits<double>::infinity();
  bool or_auto = false;   // For integer: AUTOTUNE is a value, which get() gives as the text "auto".
  bool required = false;  // Has no default: empty until it is set.

  std::function<OptionValue()> get;
  // Checks type and range, then assigns. Throws Error{invalid_argument}, whose message begins with the key and says
  // what was wanted and what was found. An integer is accepted where a real or a list of integers is wanted; nothing
  // else is converted. Real numbers must be finite, text must be UTF-8 without NUL.
  std::function<void(const OptionValue&)> set;

  // For kind tables only, where `get` and `set` are empty. The fields of element i ("tune.planted[1].off_ms"), after
  // growing the vector to hold it; growing ends the life of the fields of other elements. Where there are `choices`,
  // the first field is `name`, and setting another name ends the life of those behind it.
  std::function<std::vector<Field>(std::size_t)> element;
  std::function<std::size_t()> element_count;
  std::function<void()> clear_elements;
  // The fields of an element with its defaults ("tune.planted[].off_ms"), alive as long as this Field.
  std::function<std::vector<Field>()> element_defaults;
};

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
// The name today of a key, or a table, of an earlier version. Any other is its own.
std::string current_name(std::string_view key);
// The same of a setting, value as TOML: a value may have become that of another key.
std::pair<std::string, std::string> current_setting(std::string_view key, std::string_view value);
// The same of all settings of a job. An earlier version had a key for worker threads and one for worker processes:
// where both are set, data.num_workers is the number of threads if data.loader is "headrace", else the number of
// processes.
std::map<std::string, std::string> current_settings(const std::map<std::string, std::string>& settings);
// The field of that key; Error{invalid_argument} ends with advice_on_key() when there is none.
const Field& field_named(const std::vector<Field>& fields, std::string_view key);

namespace detail {

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

// What the type of an option decides: the field's kind, how it is read, and its checked assignment. `value` must
// outlive the field. `range`: null where there is none.
void bind_field(Field& field, bool& value);
void bind_field(Field& field, std::string& value);
void bind_field(Field& field, std::vector<std::string>& value);
void bind_field(Field& field, std::int64_t& value, const Range<std::int64_t>* range);
void bind_field(Field& field, double& value, const Range<double>* range);
void bind_field(Field& field, std::vector<std::int64_t>& value, const Range<std::int64_t>* range);
void bind_field(Field& field, std::vector<double>& value, const Range<double>* range);
// One of these names. `hold` gets the place among them of the one that is set.
void bind_names(Field& field, std::vector<std::string> names, std::function<std::string()> held,
                std::function<void(std::size_t)> hold);
// A choice's value by its name: of those named "true" and "false" a bool, of others the name.
OptionValue choice_value(std::string_view name);

class FieldCollector {
 public:
  FieldCollector(std::string prefix, std::vector<Field>& out) : prefix_(std::move(prefix)), out_(out) {}

  template <class T>
  void operator()(const char* name, T& value, const char* sentence) {
    if constexpr (NamedOptions<T>) {
      bind_name(add(name, sentence), value);
    } else if constexpr (Described<T>) {
      FieldCollector nested{prefix_ + name + ".", out_};
      describe(nested, value);
    } else {
      Field& field = add(name, sentence);
      if constexpr (ChoiceEnum<T>) {
        bind_choice(field, value);
      } else if constexpr (requires { bind_field(field, value, nullptr); }) {
        bind_field(field, value, nullptr);
      } else if constexpr (requires { bind_field(field, value); }) {
        bind_field(field, value);
      } else {
        static_assert(Described<typename T::value_type>, "no such kind of option");
        bind_tables(field, value);
      }
    }
  }
  // The range has the option's type, or that of its elements.
  template <class T, class R>
  void operator()(const char* name, T& value, Range<R> range, const char* sentence) {
    bind_field(add(name, sentence), value, &range);
  }
  template <class T, class... Rest>
  void operator()(const char* name, T& value, Required, Rest... rest) {
    (*this)(name, value, rest...);
    out_.back().required = true;
  }

 private:
  Field& add(const char* name, const char* sentence);
  template <class E>
  static void bind_choice(Field& field, E& value);
  template <class Options>
  static void bind_name(Field& field, Options& options);
  template <class Element>
  static void bind_tables(Field& field, std::vector<Element>& elements);

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

template <class E>
void detail::FieldCollector::bind_choice(Field& field, E& value) {
  std::vector<std::string> names;
  for (const auto& choice : choices(value)) names.emplace_back(choice.name);
  const auto set = [&value](std::size_t place) { value = choices(value)[place].value; };
  bind_names(
      field, std::move(names), [&value] { return std::string(choice_name(value)); }, set);
}

template <class Options>
void detail::FieldCollector::bind_name(Field& field, Options& options) {
  field.required = true;
  const auto set = [&options](std::size_t place) { hold(options, place); };
  bind_names(
      field, names_of(options), [&options] { return std::string(held_name(options)); }, set);
}

template <class Element>
void detail::FieldCollector::bind_tables(Field& field, std::vector<Element>& elements) {
  field.kind = FieldKind::tables;
  if constexpr (NamedOptions<Element>) field.choices = names_of(Element{});
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
