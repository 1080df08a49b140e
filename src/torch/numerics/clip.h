// Clipping by norm in two halves: what to multiply each gradient with, and the multiplication, which an update that
// walks over the gradients anyway does on the way.
#pragma once

#include <headrace/clip_gradients.h>

#include <cstddef>
#include <span>
#include <vector>

namespace headrace {

struct NormFactors {
  ClipReport report;
  std::vector<double> factors;  // Of the gradients, parameter by parameter; the loss scale is taken off with it.
};

// What clip_gradients() with max_norm, or without any limit, would multiply the gradients with. Reads them once and
// changes nothing. Where the report says that they are not finite there are no factors. Errors as there.
NormFactors norm_factors(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                         const ClipOptions& options, double factor = 1.0);

// What clip_gradients() does by norm or value, or without a limit, by operators that read nothing on the host: it can
// be captured. Gradients are multiplied in place; where some are not finite they are of no use afterwards.
struct DeviceClip {
  // (4) float32: norm_before, clipped, 1 where some gradient is not finite, else 0, and of those the last one's place
  // among the gradients, else -1. Without a clip norm_before is the largest absolute value.
  at::Tensor figures;
  at::Tensor found_inf;                 // The third of these, a scalar.
  std::vector<std::size_t> parameters;  // Of each gradient, the place of its parameter.
};
// Error{invalid_argument} as clip_gradients(), and with a ratio. On the device of the first parameter, of which there
// is one at least.
DeviceClip clip_on_device(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                          const ClipOptions& options, double factor = 1.0);

}  // namespace headrace
