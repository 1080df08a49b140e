// What option structs are made of. Each names its options once, with range and sentence, in its describe().
//
// TOML, command-line flags, docs/options.md, the JSON schema, `explain` and the tuner's knobs all read that list
// through `fields_of` (headrace/option_fields.h). A struct FooOptions has a default for every field, and beside it:
//
//   template <class Visitor, class Options>
//     requires std::same_as<std::remove_const_t<Options>, FooOptions>
//   void describe(Visitor& visit, Options& o) {
//     visit("batch_size", o.batch_size, Range<std::int64_t>{1, 1'000'000}, "Samples in a batch.");
//     visit("num_workers", o.num_workers, Range<std::int64_t>{0, 256, kOrAuto}, "Threads that load.");
//     visit("shuffle", o.shuffle, "Draw a new order each epoch.");            // bool, string, path: no range
//     visit("last_batch", o.last_batch, "What happens to ...");              // enum: see choices() below
//     visit("transform", o.transform, "How a sample becomes a tensor.");     // nested struct: its own describe()
//     visit("planted", o.planted, "Fake knobs ...");                         // std::vector of described structs
//     visit("size", o.size, kRequired, Range<std::int64_t>{1, 8192}, "...");  // of a list's table: has no default
//   }
//
// Field types: bool, std::int64_t, double, std::string, an enum with choices(), std::vector<std::int64_t>,
// std::vector<double>, std::vector<std::string>, a described struct, a std::vector of a described struct or of a
// variant of such structs (headrace/named_options.h). An enum E gives its names through
// ADL: `constexpr auto choices(E) { return std::array{Choice<E>{E::keep, "keep"}, ...}; }`.
// Numbers are read and written without the locale, and real ones come back bit for bit.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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

// Marks an option of a table of a list that has no default: its empty text or list stands for none.
struct Required {};
inline constexpr Required kRequired{};

template <class E>
struct Choice {
  E value;
  std::string_view name;
};

constexpr auto choices(Switch) {
  return std::array{Choice<Switch>{Switch::off, "false"}, Choice<Switch>{Switch::on, "true"},
                    Choice<Switch>{Switch::automatic, "auto"}};
}

// The name of an enum's value in its choices(), as TOML and flags write it. A value without one stops the process: it
// is no value of the enum.
template <class E>
constexpr std::string_view choice_name(E value) noexcept {
  for (const Choice<E>& choice : choices(value)) {
    if (choice.value == value) return choice.name;
  }
  std::fputs("headrace: options: a value without a name in its choices()\n", stderr);
  std::abort();
}

}  // namespace headrace
