// The knobs of a recipe that are settings of the whole process, and what applies them.
#pragma once

#include <headrace/error.h>

#include <span>
#include <string_view>

#include "app/recipe/recipe.h"

namespace headrace {

struct ProcessSetting {
  std::string_view key;  // As the knob's (app/knobs/knob.h).
  // Applies what the recipe says of this key, for the threads that compute for the caller.
  Applied (*apply)(const Recipe&);
};

// In the order of the knobs. Training::apply_live() or Python's door knows every other knob's key.
std::span<const ProcessSetting> all_process_settings();

}  // namespace headrace
