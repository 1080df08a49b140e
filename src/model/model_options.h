// Which network, and how its tensors lie in memory.
#pragma once

#include <headrace/options.h>

namespace headrace {

enum class MemoryFormat { contiguous, channels_last };
constexpr auto choices(MemoryFormat) {
  return std::array{Choice<MemoryFormat>{MemoryFormat::contiguous, "contiguous"},
                    Choice<MemoryFormat>{MemoryFormat::channels_last, "channels_last"}};
}

struct ModelOptions {
  std::string name = "small_cnn";
  std::int64_t classes = 10;
  MemoryFormat memory_format = MemoryFormat::contiguous;  // Of 4-D parameters and inputs. Live knob.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ModelOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "The network: small_cnn, mlp.");
  visit("classes", o.classes, Range<std::int64_t>{2, 100000}, "Classes of the last layer.");
  visit("memory_format", o.memory_format,
        "Layout of pictures and convolution weights: contiguous (NCHW) or channels_last (NHWC).");
}

}  // namespace headrace
