#include "engine/assembly/state.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

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
  SquareSums sums;
  for (std::size_t i = 0; i < a.size(); ++i) sums += squares(b[i], a[i]);
  return sums.relative_l2();
}

at::Tensor in_double(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, at::kDouble).contiguous();
}

double sum_of_squares(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor numbers = in_double(tensor);
  const double* values = numbers.const_data_ptr<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < numbers.numel(); ++i) sum += values[i] * values[i];
  return sum;
}

}  // namespace

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

SquareSums& SquareSums::operator+=(const SquareSums& other) noexcept {
  reference += other.reference;
  candidate += other.candidate;
  difference += other.difference;
  return *this;
}

double SquareSums::relative_l2() const noexcept {
  if (difference == 0) return 0;
  if (!std::isfinite(difference) || reference == 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(difference / reference);
}

double SquareSums::distance() const noexcept {
  return SquareSums{std::max(reference, candidate), candidate, difference}.relative_l2();
}

double SquareSums::cosine() const noexcept {
  if (!std::isfinite(difference)) return std::numeric_limits<double>::quiet_NaN();
  if (reference == 0 || candidate == 0) return reference == candidate ? 1 : 0;
  const double product = (reference + candidate - difference) / 2;
  return std::clamp(product / (std::sqrt(reference) * std::sqrt(candidate)), -1.0, 1.0);
}

SquareSums squares(const at::Tensor& reference, const at::Tensor& candidate) {
  if (!reference.defined() || !candidate.defined()) {
    const double first = sum_of_squares(reference), second = sum_of_squares(candidate);
    return {first, second, first + second};
  }
  const at::Tensor first = in_double(reference), second = in_double(candidate);
  const double* a = first.const_data_ptr<double>();
  const double* b = second.const_data_ptr<double>();
  SquareSums sums;
  for (std::int64_t i = 0; i < first.numel(); ++i) {
    sums += {a[i] * a[i], b[i] * b[i], (b[i] - a[i]) * (b[i] - a[i])};
  }
  return sums;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor first = a.detach().cpu().contiguous(), second = b.detach().cpu().contiguous();
  return first.nbytes() == 0 || std::memcmp(first.const_data_ptr(), second.const_data_ptr(), first.nbytes()) == 0;
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
