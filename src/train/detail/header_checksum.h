// What keeps a flipped bit in a checkpoint's header from passing for another state.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

// XXH3 of all that the header says but its two checksums: the texts, and names, types and shapes of the tensors in
// whatever order. 16 digits.
std::string header_checksum(const std::map<std::string, std::string>& texts,
                            const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace headrace
