// An option that is one of several structs, told apart by a name: a std::variant<std::monostate, A, B, ...>, where each
// of A, B, ... has beside its describe()
//
//   static constexpr const char* kName = "Resize";                      // The value of the key `name`.
//   static constexpr const char* kSentence = "Changes an image's size."; // What it is.
//
// std::monostate is one that nobody named yet. A list of them is a list of tables, each with a key `name`:
// describe() visits the variant itself as `name`, then the options of the struct that it holds.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace headrace {
namespace detail {

template <class T>
concept HasName = requires {
  T::kName;
  T::kSentence;
};
template <class T>
inline constexpr bool kIsNamed = false;
template <class... Structs>
inline constexpr bool kIsNamed<std::variant<std::monostate, Structs...>> = (HasName<Structs> && ...);

}  // namespace detail

template <class T>
concept NamedOptions = detail::kIsNamed<std::remove_const_t<T>>;

// The names there are, in order.
template <class... Structs>
std::vector<std::string> names_of(const std::variant<std::monostate, Structs...>&) {
  return {std::string(Structs::kName)...};
}

// Empty: none yet.
template <NamedOptions Options>
const char* held_name(const Options& options) {
  const auto name = [](const auto& held) -> const char* {
    if constexpr (std::same_as<decltype(held), const std::monostate&>) {
      return "";
    } else {
      return held.kName;
    }
  };
  return std::visit(name, options);
}

// Makes it the struct of that place among the names, with its defaults; one that it holds already stays as it is.
template <class... Structs>
void hold(std::variant<std::monostate, Structs...>& options, std::size_t place) {
  std::size_t at = 0;
  const auto becomes = [&]<class Struct>(std::type_identity<Struct>) {
    if (at++ == place && !std::holds_alternative<Struct>(options)) options = Struct{};
  };
  (becomes(std::type_identity<Structs>{}), ...);
}

template <class Visitor, NamedOptions Options>
void describe(Visitor& visit, Options& options) {
  const auto describe_held = [&](auto& held) {
    if constexpr (std::same_as<std::remove_cvref_t<decltype(held)>, std::monostate>) {
      visit("name", options, "Which of them it is.");
    } else {
      visit("name", options, held.kSentence);
      describe(visit, held);
    }
  };
  std::visit(describe_held, options);
}

}  // namespace headrace
