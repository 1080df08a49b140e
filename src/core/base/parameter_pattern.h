// Patterns by which options name the parameters of a model, and the modules that they are in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Whether the pattern is the name of the parameter, or of a module that it is in: "layer1" names
// "layer1.0.conv1.weight". * in the pattern stands for any characters, or none, and ? for one.
bool names_parameter(std::string_view pattern, const std::string& parameter);

// The modules that the parameter is in, outermost first, and the parameter: "fc", "fc.weight".
std::vector<std::string> module_path(const std::string& parameter);

// What an error for a pattern that names none of the parameters ends with: ", did you mean layer1?", or "; the model
// has conv1, layer1, fc" where nothing is near.
std::string advice_on_pattern(std::string_view pattern, const std::vector<std::string>& parameters);

}  // namespace headrace
