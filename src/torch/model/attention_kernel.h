// Which kernel computes the attention of a native network.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/error.h>
#include <headrace/options/model.h>

#include <cstdint>
#include <optional>

namespace headrace {

// What scaled_dot_product_attention chooses on the CPU for the training steps of a vision transformer on images of
// height x width pixels, computed in `dtype`: LibTorch is asked with tensors of the network's shapes, as the operator
// itself asks at each call. Applied "model.attention", requested "auto": "flash", "efficient", "cudnn", "math", or
// "unavailable" for a choice that has no name here; where dropout rules out the others its reason says so. nullopt: the
// network has no attention of its own, as others than vit and vit_b_16 and modules of TorchScript. Any thread.
std::optional<Applied> applied_attention(const ModelOptions& options, std::int64_t height, std::int64_t width,
                                         at::ScalarType dtype);

}  // namespace headrace
