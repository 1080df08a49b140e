#include "app/knobs/strategy_name.h"

#include <algorithm>

#include "app/knobs/knob.h"
#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::size_t kNameMax = 40;

bool is_letter(char c) {
  return c >= 'a' && c <= 'z';
}

bool has_form(std::string_view name) {
  const auto may_stand = [](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kNameMax && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), may_stand);
}

// For a message of one line.
std::string shown(std::string_view name) {
  std::string text(name);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return text;
}

// By its own name, or by what its key says in a recipe.
bool names(std::string_view name, const Knob& knob) {
  return name == knob.name || name == knob.key.substr(knob.key.find('.') + 1);
}

}  // namespace

void check_strategy(std::string_view name, std::string_view sentence, std::span<const std::string> taken) {
  if (!has_form(name)) {
    fail(ErrorCode::invalid_argument,
         "strategy: name: wanted 1 to {} of a to z, 0 to 9, _ and -, a letter first, found \"{}\"", kNameMax,
         shown(name));
  }
  for (const Knob& knob : all_knobs()) {
    if (!names(name, knob)) continue;
    fail(ErrorCode::invalid_argument, "strategy: name: wanted one of its own, found \"{}\", which is headrace's {}",
         name, knob.key);
  }
  if (std::find(taken.begin(), taken.end(), name) != taken.end()) {
    fail(ErrorCode::invalid_argument, "strategy: name: wanted a new one, found \"{}\", which is registered", name);
  }
  if (sentence.empty()) {
    fail(ErrorCode::invalid_argument, "strategy: {}: sentence: wanted what it changes, found an empty text", name);
  }
}

}  // namespace headrace
