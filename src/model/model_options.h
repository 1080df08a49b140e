// Which network, and how its tensors lie in memory.
#pragma once

#include <headrace/options.h>

namespace headrace {

enum class MemoryFormat { contiguous, channels_last };
constexpr auto choices(MemoryFormat) {
  return std::array{Choice<MemoryFormat>{MemoryFormat::contiguous, "contiguous"},
                    Choice<MemoryFormat>{MemoryFormat::channels_last, "channels_last"}};
}

enum class Fusion { none, norm_relu_pool };
constexpr auto choices(Fusion) {
  return std::array{Choice<Fusion>{Fusion::none, "none"}, Choice<Fusion>{Fusion::norm_relu_pool, "norm_relu_pool"}};
}

struct ModelOptions {
  std::string name = "small_cnn";
  std::int64_t classes = 10;
  MemoryFormat memory_format = MemoryFormat::contiguous;  // Of 4-D parameters and inputs. Live knob.
  Fusion fusion = Fusion::none;                           // Less memory traffic, sums in another order. Live knob.
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, ModelOptions>
void describe(Visitor& visit, Options& o) {
  visit("name", o.name, "The network: small_cnn, mlp.");
  visit("classes", o.classes, Range<std::int64_t>{2, 100000}, "Classes of the last layer.");
  visit("memory_format", o.memory_format,
        "Layout of pictures and convolution weights: contiguous (NCHW) or channels_last (NHWC).");
  visit("fusion", o.fusion,
        "Batch normalisation, ReLU and max pooling as PyTorch's three operators (none) or as one native operator "
        "(norm_relu_pool); mlp has none of them.");
}

}  // namespace headrace
