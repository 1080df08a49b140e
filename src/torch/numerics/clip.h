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

}  // namespace headrace
