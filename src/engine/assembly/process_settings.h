// The knobs that are settings of the whole process: what applies them, and what is in force.
#pragma once

#include <headrace/error.h>
#include <headrace/job.h>

#include <span>
#include <string>
#include <string_view>

#include "app/recipe/recipe.h"

namespace headrace {

struct ProcessSetting {
  std::string_view key;  // As the knob's (app/knobs/knob.h).
  // Applies what the recipe says of this key, for the threads that compute for the caller.
  Applied (*apply)(const Recipe&);
  // Reads as TOML what is in force for the caller.
  std::string (*in_force)();
};

// In the order of the knobs. Training::apply_live() or Python's door knows every other knob's key.
std::span<const ProcessSetting> all_process_settings();

// What is in force for the caller; and one of them applied. Error{invalid_argument}: this key is none of them, or takes
// no such value.
Settings process_settings();
Applied apply_process_setting(const std::string& key, const std::string& value);

}  // namespace headrace
