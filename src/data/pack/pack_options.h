// What `headrace pack` puts into a pack of each sample.
#pragma once

#include <headrace/options.h>

#include <array>
#include <cstdint>

namespace headrace {

enum class PackForm {
  stored,  // Its bytes as they are: files of photographs, which are decoded when they are loaded.
  raw,     // The pixels.
  lz4,     // The pixels, compressed without loss; data/store/row_blocks.h.
};
constexpr auto choices(PackForm) {
  return std::array{Choice<PackForm>{PackForm::stored, "stored"}, Choice<PackForm>{PackForm::raw, "raw"},
                    Choice<PackForm>{PackForm::lz4, "lz4"}};
}

constexpr std::int64_t kPackShortSideMax = 8192;

}  // namespace headrace
