// What the probes that pytest runs share: words in, safetensors files out.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/option_fields.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "torch/tensor/compute.h"
#include "torch/tensor/translate.h"

namespace headrace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;
using Words = std::vector<std::string>;

// KEY=VALUE as a recipe writes them, from the words at `first` on.
template <class Options>
Options options_from(const Words& words, std::size_t first) {
  Options options;
  const std::vector<Field> fields = fields_of(options);
  for (std::size_t i = first; i < words.size(); ++i) {
    const std::size_t sign = words[i].find('=');
    const Field& field = field_named(fields, words[i].substr(0, sign));
    field.set(parse_option(field, words[i].substr(sign + 1)));
  }
  return options;
}

// The command of the first word, with one thread; an error is one line on stderr and status 1.
inline int run_probe(const std::map<std::string, void (*)(const Words&)>& commands, int argc, char** argv) {
  try {
    apply_compute_threads(1);
    const Words words(argv + 1, argv + argc);
    commands.at(words.at(0))(Words(words.begin() + 1, words.end()));
    return 0;
  } catch (...) {
    fmt::print(stderr, "{}: {}\n", argv[0], translate(std::current_exception()).what());
    return 1;
  }
}

}  // namespace headrace
