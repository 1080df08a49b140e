#include "torch/numerics/unscale.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "core/base/fail.h"

namespace headrace {
namespace {

// What one call of the kernel takes.
struct Alike {
  at::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

std::vector<Alike> by_device_and_dtype(const std::vector<at::Tensor>& gradients) {
  std::vector<Alike> lists;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.scalar_type() == at::kHalf) {
      fail(ErrorCode::invalid_argument,
           "numerics: wanted gradients of float32 to take a loss scale off, found float16; keep the parameters in "
           "float32 and compute under autocast");
    }
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    const auto is_like = [&values](const Alike& list) {
      return list.device == values.device() && list.dtype == values.scalar_type();
    };
    auto list = std::find_if(lists.begin(), lists.end(), is_like);
    if (list == lists.end()) {
      lists.push_back(Alike{values.device(), values.scalar_type(), {}});
      list = lists.end() - 1;
    }
    list->gradients.push_back(values);
  }
  return lists;
}

}  // namespace

std::vector<at::Tensor> unscale_gradients(const std::vector<at::Tensor>& gradients, double scale) {
  c10::AutoGradMode no_graph(false);
  const float inverse = 1.0F / static_cast<float>(scale);  // Infinite from 2^-128 down, as torch's.
  std::vector<at::Tensor> found_inf;
  for (const Alike& list : by_device_and_dtype(gradients)) {
    const auto options = at::TensorOptions(list.device).dtype(at::kFloat);
    auto found = std::find_if(found_inf.begin(), found_inf.end(),
                              [&list](const at::Tensor& number) { return number.device() == list.device; });
    if (found == found_inf.end()) found = found_inf.insert(found, at::zeros({}, options));
    at::_amp_foreach_non_finite_check_and_unscale_(list.gradients, *found, at::full({}, inverse, options));
  }
  return found_inf;
}

bool any_found(const std::vector<at::Tensor>& found_inf) {
  return std::any_of(found_inf.begin(), found_inf.end(),
                     [](const at::Tensor& number) { return number.item<float>() != 0.0F; });
}

}  // namespace headrace
