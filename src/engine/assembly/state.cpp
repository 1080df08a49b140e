#include "engine/assembly/state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "core/base/hash.h"

namespace headrace {
namespace {

using Kinds = std::map<std::string, std::vector<at::Tensor>>;

Kinds by_kind(const NamedTensors& tensors) {
  Kinds kinds;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t slash = name.rfind('/');
    kinds[slash == std::string::npos ? "" : name.substr(slash)].push_back(tensor);
  }
  return kinds;
}

double relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const at::Tensor x = a[i].to(at::kCPU, at::kDouble).contiguous(), y = b[i].to(at::kCPU, at::kDouble).contiguous();
    const double* px = x.const_data_ptr<double>();
    const double* py = y.const_data_ptr<double>();
    for (std::int64_t j = 0; j < x.numel(); ++j) {
      difference += (px[j] - py[j]) * (px[j] - py[j]);
      size += py[j] * py[j];
    }
  }
  if (difference == 0) return 0;
  return size == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / size);
}

}  // namespace

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

std::vector<float> float_values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  const float* values = flat.const_data_ptr<float>();
  return {values, values + flat.numel()};
}

std::uint64_t hash_of(const NamedTensors& tensors) {
  Xxh3Stream stream;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.detach().cpu().contiguous();
    stream.update({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
  }
  return stream.digest();
}

std::vector<Fingerprint::Gradient> gradients_of(const NamedTensors& parameters) {
  std::vector<Fingerprint::Gradient> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.push_back({name, float_values(parameter.grad())});
  }
  return gradients;
}

std::vector<ExactFingerprint::Gradient> exact_gradients(const NamedTensors& gradients) {
  std::vector<ExactFingerprint::Gradient> result;
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor flat = gradient.detach().to(at::kCPU, at::kDouble).contiguous();
    const double* values = flat.const_data_ptr<double>();
    result.push_back({name, {values, values + flat.numel()}});
  }
  return result;
}

void set_gradients(const NamedTensors& parameters, const std::vector<Fingerprint::Gradient>& gradients) {
  std::size_t next = 0;
  for (const auto& [name, parameter] : parameters) {
    if (next >= gradients.size() || gradients[next].name != name) continue;
    at::Tensor gradient = at::empty_like(parameter.detach());
    gradient.copy_(at::from_blob(const_cast<float*>(gradients[next].values.data()), parameter.sizes()));
    parameter.mutable_grad() = std::move(gradient);
    ++next;
  }
}

NamedTensors copies_of(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

double state_difference(const NamedTensors& a, const NamedTensors& b) {
  const Kinds kinds_a = by_kind(a), kinds_b = by_kind(b);
  if (kinds_a.size() != kinds_b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (const auto& [kind, tensors] : kinds_a) {
    const auto other = kinds_b.find(kind);
    if (other == kinds_b.end()) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, relative_difference(tensors, other->second));
  }
  return largest;
}

}  // namespace headrace
