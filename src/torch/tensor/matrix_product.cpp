#include "torch/tensor/matrix_product.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

namespace headrace {

std::function<void(std::int64_t n)> matrix_product() {
  struct Matrices {
    at::Tensor a, b, product;
  };
  return [kept = Matrices{}](std::int64_t n) mutable {
    const at::NoGradGuard no_graph;
    if (!kept.a.defined() || kept.a.size(0) != n) {
      kept = {at::full({n, n}, 0.5F), at::full({n, n}, 2.0F), at::empty({n, n})};
    }
    at::mm_out(kept.product, kept.a, kept.b);
  };
}

}  // namespace headrace
