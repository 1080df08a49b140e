#include "torch/numerics/clip.h"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fail.h"
#include "core/options/contradictions.h"
#include "torch/numerics/gradient_kernels.h"
#include "torch/tensor/parallel.h"

namespace headrace {
namespace {

using gradient_passes::Extent;
using gradient_passes::kernels;

constexpr double kNormGuard = 1e-6;         // PyTorch's, against a norm of zero; that of adaptive clipping, too.
constexpr double kWeightNormMin = 1e-3;     // Or weights that begin with zeros would never move.
constexpr std::int64_t kPiece = 16'384;     // Elements a kernel takes at once; one size, so that sums are the same on
                                            // any number of threads.
constexpr std::int64_t kParallel = 65'536;  // Elements that are worth waking other threads.

// Float32 in the memory of this machine, one element behind the other in some order: what the kernels read.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat &&
         tensor.is_non_overlapping_and_dense();
}

std::int64_t units_of(const at::Tensor& tensor) {
  return tensor.dim() < 2 ? 1 : tensor.size(0);
}

// Each unit one behind the other, too.
bool has_plain_units(const at::Tensor& tensor) {
  return is_plain(tensor) && (units_of(tensor) == 1 || tensor.stride(0) == tensor.numel() / tensor.size(0));
}

// A run of elements of a plain tensor.
struct Piece {
  std::size_t tensor;  // Its place in the list.
  float* data;
  std::int64_t count;
};

// Adds the pieces of `tensor`, of at most `size` elements each.
void cut(const at::Tensor& tensor, std::size_t place, std::int64_t size, std::vector<Piece>& pieces) {
  float* const data = tensor.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); i += size) {
    pieces.push_back({place, data + i, std::min(size, tensor.numel() - i)});
  }
}

// What `work(piece, its place)` returns of each.
template <class Work>
std::vector<Extent> for_each_piece(const std::vector<Piece>& pieces, const Work& work) {
  std::vector<Extent> found(pieces.size());
  const auto some = [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      found[i] = work(pieces[i], i);
    }
  };
  const std::int64_t elements = std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0},
                                                [](std::int64_t sum, const Piece& piece) { return sum + piece.count; });
  const auto count = static_cast<std::int64_t>(pieces.size());
  if (elements < kParallel) {
    some(0, count);
  } else {
    for_each_range(count, some);
  }
  return found;
}

std::vector<Extent> measured(const std::vector<Piece>& pieces) {
  return for_each_piece(pieces,
                        [](const Piece& piece, std::size_t) { return kernels().measure(piece.data, piece.count); });
}

// The gradients there are, those for the kernels and the others. Places are those of `all`.
struct Gradients {
  std::vector<at::Tensor> all, weights;
  std::vector<std::size_t> parts, parameters;  // Of each: its part, and the place of its parameter.
  std::vector<std::size_t> others;             // Places.

  std::vector<at::Tensor> other_tensors(const std::vector<std::size_t>& places) const {
    std::vector<at::Tensor> tensors;
    for (const std::size_t place : places) tensors.push_back(all[place]);
    return tensors;
  }
  // Tells autograd, as LibTorch's operators do: what it saved of this gradient is no longer that.
  void note_change(std::size_t place) const { all[place].unsafeGetTensorImpl()->bump_version(); }
};

// `for_kernels(gradient, weight)`: whether the kernels take it.
template <class ForKernels>
Gradients gradients_of(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                       const ForKernels& for_kernels) {
  if (!parts.empty() && parts.size() != parameters.size()) {
    fail(ErrorCode::invalid_argument, "numerics: clip_gradients wants a part for each of {} parameters, found {}",
         parameters.size(), parts.size());
  }
  Gradients gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided || gradient.is_complex()) {
      fail(ErrorCode::invalid_argument,
           "numerics: parameter {}: wanted a dense gradient of real numbers to clip, found {} of {}", i,
           c10::str(gradient.layout()), c10::toString(gradient.scalar_type()));
    }
    if (gradient.numel() == 0) continue;
    if (!for_kernels(gradient, parameters[i])) gradients.others.push_back(gradients.all.size());
    gradients.all.push_back(gradient);
    gradients.weights.push_back(parameters[i]);
    gradients.parts.push_back(parts.empty() ? 0 : parts[i]);
    gradients.parameters.push_back(i);
  }
  return gradients;
}

std::vector<Piece> pieces_of(const Gradients& gradients) {
  std::vector<Piece> pieces;
  auto other = gradients.others.begin();
  for (std::size_t i = 0; i < gradients.all.size(); ++i) {
    if (other != gradients.others.end() && *other == i) {
      ++other;
    } else {
      cut(gradients.all[i], i, kPiece, pieces);
    }
  }
  return pieces;
}

// By LibTorch's operators, in double; one host read for all tensors.
std::vector<double> norms_by_operators(const std::vector<at::Tensor>& tensors, double order) {
  std::vector<at::Tensor> norms = at::_foreach_norm(tensors, order, at::kDouble);
  const at::Device device = norms.front().device();
  for (at::Tensor& norm : norms) norm = norm.to(device);
  const at::Tensor read = at::stack(norms).cpu();
  const double* const values = read.const_data_ptr<double>();
  return {values, values + read.numel()};
}

// Adds the extent of each of `tensors` to that at its place.
void add_by_operators(const std::vector<at::Tensor>& tensors, const std::vector<std::size_t>& places,
                      bool wants_largest, std::vector<Extent>& extents) {
  if (tensors.empty()) return;
  const std::vector<double> norms = norms_by_operators(tensors, 2.0);
  for (std::size_t i = 0; i < places.size(); ++i) extents[places[i]].squares += norms[i] * norms[i];
  if (!wants_largest) return;
  const std::vector<double> largest = norms_by_operators(tensors, std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < places.size(); ++i) extents[places[i]] += Extent{0.0, largest[i]};
}

std::vector<Extent> extents_of(const Gradients& gradients, const std::vector<Piece>& pieces, bool wants_largest) {
  std::vector<Extent> extents(gradients.all.size());
  const std::vector<Extent> found = measured(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) extents[pieces[i].tensor] += found[i];
  add_by_operators(gradients.other_tensors(gradients.others), gradients.others, wants_largest, extents);
  return extents;
}

Extent times(const Extent& extent, double factor) {
  return {extent.squares * factor * factor, extent.largest * factor};
}

double norm_of(const Extent& extent, GradNormType type) {
  return type == GradNormType::l2 ? std::sqrt(extent.squares) : extent.largest;
}

Extent together(const std::vector<Extent>& extents) {
  Extent all;
  for (const Extent& extent : extents) all += extent;
  return all;
}

// The report of gradients that nothing was done to yet.
ClipReport report_of(const Extent& all, GradNormType type, double factor) {
  ClipReport report;
  report.finite = std::isfinite(all.squares);
  report.norm_before = norm_of(times(all, factor), report.finite ? type : GradNormType::l2);
  report.norm_after = report.norm_before;
  return report;
}

// Each piece by its factor.
void multiply(const Gradients& gradients, const std::vector<Piece>& pieces, const std::vector<double>& factors) {
  for_each_piece(pieces, [&](const Piece& piece, std::size_t i) {
    if (factors[i] != 1.0) kernels().multiply(piece.data, piece.count, static_cast<float>(factors[i]));
    return Extent{};
  });
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (factors[i] != 1.0) gradients.note_change(pieces[i].tensor);
  }
}

void multiply_all(const Gradients& gradients, const std::vector<Piece>& pieces, const std::vector<double>& factors) {
  std::vector<double> of_pieces;
  for (const Piece& piece : pieces) of_pieces.push_back(factors[piece.tensor]);
  if (std::any_of(of_pieces.begin(), of_pieces.end(), [](double factor) { return factor != 1.0; })) {
    multiply(gradients, pieces, of_pieces);
  }
  std::vector<std::size_t> changed;
  std::vector<at::Scalar> scalars;
  for (const std::size_t place : gradients.others) {
    if (factors[place] == 1.0) continue;
    changed.push_back(place);
    scalars.emplace_back(factors[place]);
  }
  if (!changed.empty()) {
    const std::vector<at::Tensor> tensors = gradients.other_tensors(changed);
    at::_foreach_mul_(tensors, at::ArrayRef<at::Scalar>(scalars));
  }
}

// ---- by norm ----

// Of each gradient, from the norm of its part; `report` gets the count and the norm after.
std::vector<double> factors_by_norm(const Gradients& gradients, const std::vector<Extent>& extents,
                                    const ClipOptions& options, double factor, ClipReport& report) {
  std::map<std::size_t, Extent> of_part;
  for (std::size_t i = 0; i < extents.size(); ++i) of_part[gradients.parts[i]] += extents[i];
  std::map<std::size_t, double> factor_of_part;
  Extent after;
  for (const auto& [part, extent] : of_part) {
    const double norm = norm_of(times(extent, factor), options.norm_type);
    const double coefficient =
        options.max_norm > 0 && norm > 0 ? std::min(1.0, options.max_norm / (norm + kNormGuard)) : 1.0;
    if (options.max_norm > 0 && norm > options.max_norm) ++report.clipped;
    factor_of_part[part] = factor * coefficient;
    after += times(extent, factor * coefficient);
  }
  report.norm_after = norm_of(after, options.norm_type);
  std::vector<double> factors;
  for (const std::size_t part : gradients.parts) factors.push_back(factor_of_part[part]);
  return factors;
}

ClipReport clip_by_norm(const Gradients& gradients, const ClipOptions& options, double factor) {
  const std::vector<Piece> pieces = pieces_of(gradients);
  const std::vector<Extent> extents = extents_of(gradients, pieces, options.norm_type == GradNormType::inf);
  ClipReport report = report_of(together(extents), options.norm_type, factor);
  if (report.finite) {
    multiply_all(gradients, pieces, factors_by_norm(gradients, extents, options, factor, report));
  }
  return report;
}

// ---- by value ----

// Whether the largest element of a gradient, times the factor, is beyond the limit: all in the gradient's type, in
// which one that was clipped before is at its limit.
bool is_beyond(const at::Tensor& gradient, double largest, double factor, double limit) {
  const at::ScalarType type = gradient.scalar_type();
  if (type == at::kDouble) return largest * factor > limit;
  const float product = static_cast<float>(largest) * static_cast<float>(factor);
  const auto float_limit = static_cast<float>(limit);
  if (type == at::kHalf) {
    return static_cast<float>(c10::Half(product)) > static_cast<float>(c10::Half(float_limit));
  }
  if (type == at::kBFloat16) {
    return static_cast<float>(c10::BFloat16(product)) > static_cast<float>(c10::BFloat16(float_limit));
  }
  return product > float_limit;
}

ClipReport clip_by_value(const Gradients& gradients, const ClipOptions& options, double factor) {
  const std::vector<Piece> pieces = pieces_of(gradients);
  std::vector<Extent> extents = extents_of(gradients, pieces, /*wants_largest=*/true);
  ClipReport report = report_of(together(extents), options.norm_type, factor);
  if (!report.finite) return report;

  std::vector<bool> is_over;
  std::vector<double> factors;  // Of those that are not.
  for (std::size_t i = 0; i < extents.size(); ++i) {
    Extent& extent = extents[i];
    is_over.push_back(is_beyond(gradients.all[i], extent.largest, factor, options.value));
    report.clipped += is_over.back();
    factors.push_back(is_over.back() ? 1.0 : factor);
    extent = is_over.back() ? Extent{} : times(extent, factor);
  }
  multiply_all(gradients, pieces, factors);
  if (report.clipped == 0) return report;

  std::vector<Piece> over;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(over),
               [&](const Piece& piece) { return is_over[piece.tensor]; });
  const std::vector<Extent> found = for_each_piece(over, [&](const Piece& piece, std::size_t) {
    return kernels().clamp(piece.data, piece.count, static_cast<float>(factor), static_cast<float>(options.value));
  });
  for (std::size_t i = 0; i < over.size(); ++i) {
    extents[over[i].tensor] += found[i];
    gradients.note_change(over[i].tensor);
  }

  std::vector<std::size_t> others;
  std::copy_if(gradients.others.begin(), gradients.others.end(), std::back_inserter(others),
               [&](std::size_t place) { return is_over[place]; });
  const std::vector<at::Tensor> tensors = gradients.other_tensors(others);
  if (!tensors.empty()) {
    if (factor != 1.0) at::_foreach_mul_(tensors, at::Scalar(factor));
    at::_foreach_clamp_min_(tensors, at::Scalar(-options.value));
    at::_foreach_clamp_max_(tensors, at::Scalar(options.value));
    add_by_operators(tensors, others, /*wants_largest=*/true, extents);
  }
  report.norm_after = norm_of(together(extents), options.norm_type);
  return report;
}

// ---- by the ratio to the weights ----

// What a unit's gradient of this norm is multiplied with.
double unit_coefficient(double norm, double weight_norm, double ratio) {
  const double limit = std::max(weight_norm, kWeightNormMin) * ratio;
  return norm > limit ? limit / std::max(norm, kNormGuard) : 1.0;
}

at::Tensor unit_norms(const at::Tensor& tensor) {
  if (tensor.dim() < 2) return at::linalg_vector_norm(tensor, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
  std::vector<std::int64_t> axes(static_cast<std::size_t>(tensor.dim()) - 1);
  std::iota(axes.begin(), axes.end(), 1);
  return at::linalg_vector_norm(tensor, 2, at::IntArrayRef(axes), /*keepdim=*/true, at::kDouble);
}

// By LibTorch's operators; returns the squares after it and the number of units clipped, not read yet.
at::Tensor clip_units_by_operators(const at::Tensor& gradient, const at::Tensor& weight, double ratio, double factor) {
  const at::Tensor norms = unit_norms(gradient).mul(factor);
  const at::Tensor limits = unit_norms(weight).clamp_min(kWeightNormMin).mul(ratio);
  const at::Tensor is_over = norms.gt(limits);
  const at::Tensor coefficients = at::where(is_over, limits.div(norms.clamp_min(kNormGuard)), at::Scalar(1.0));
  gradient.mul_(coefficients.mul(factor));
  return at::stack({norms.mul(coefficients).square().sum(), is_over.sum().to(at::kDouble)});
}

// The units of plain gradients and of their weights, place by place.
struct Units {
  std::vector<Piece> gradients, weights;
};

Units units_of(const Gradients& gradients) {
  Units units;
  auto other = gradients.others.begin();
  for (std::size_t i = 0; i < gradients.all.size(); ++i) {
    if (other != gradients.others.end() && *other == i) {
      ++other;
      continue;
    }
    const std::int64_t size = gradients.all[i].numel() / units_of(gradients.all[i]);
    cut(gradients.all[i], i, size, units.gradients);
    cut(gradients.weights[i], i, size, units.weights);
  }
  return units;
}

ClipReport clip_by_ratio(const Gradients& gradients, const ClipOptions& options, double factor) {
  const Units units = units_of(gradients);
  const std::vector<Extent> extents = measured(units.gradients);
  std::vector<Extent> of_others(gradients.all.size());
  const std::vector<at::Tensor> others = gradients.other_tensors(gradients.others);
  add_by_operators(others, gradients.others, /*wants_largest=*/false, of_others);
  Extent all = together(extents);
  all += together(of_others);
  ClipReport report = report_of(all, GradNormType::l2, factor);
  if (!report.finite) return report;

  const std::vector<Extent> weights = measured(units.weights);
  std::vector<double> factors;
  Extent after;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const double coefficient =
        unit_coefficient(std::sqrt(extents[i].squares) * factor, std::sqrt(weights[i].squares), options.ratio);
    if (coefficient < 1.0) ++report.clipped;
    factors.push_back(factor * coefficient);
    after += times(extents[i], factors.back());
  }
  multiply(gradients, units.gradients, factors);

  std::vector<at::Tensor> figures;
  for (const std::size_t place : gradients.others) {
    figures.push_back(clip_units_by_operators(gradients.all[place], gradients.weights[place], options.ratio, factor)
                          .to(gradients.all[gradients.others.front()].device()));
  }
  if (!figures.empty()) {
    const at::Tensor read = at::stack(figures).sum(0).cpu();
    after.squares += read.const_data_ptr<double>()[0];
    report.clipped += static_cast<std::int64_t>(read.const_data_ptr<double>()[1]);
  }
  report.norm_after = std::sqrt(after.squares);
  return report;
}

// ---- on a device, without reading ----

// Of each gradient, one behind the other, in double.
at::Tensor norms_unread(const std::vector<at::Tensor>& gradients, GradNormType type) {
  const double order = type == GradNormType::l2 ? 2.0 : std::numeric_limits<double>::infinity();
  return at::stack(at::_foreach_norm(gradients, order, at::kDouble));
}

at::Tensor norm_of_norms(const at::Tensor& norms, GradNormType type) {
  return type == GradNormType::l2 ? at::linalg_vector_norm(norms, 2) : norms.max();
}

// By the norms of their parts; returns how many were above the limit.
at::Tensor clip_parts_unread(const Gradients& gradients, const at::Tensor& norms, const ClipOptions& options,
                             double factor) {
  std::map<std::size_t, std::vector<std::size_t>> of_part;
  for (std::size_t i = 0; i < gradients.all.size(); ++i) of_part[gradients.parts[i]].push_back(i);
  std::vector<at::Tensor> are_over;
  for (const auto& [part, places] : of_part) {
    at::Tensor of_these = norms;
    if (of_part.size() > 1) {
      std::vector<at::Tensor> some;
      for (const std::size_t place : places) some.push_back(norms.select(0, static_cast<std::int64_t>(place)));
      of_these = at::stack(some);
    }
    const at::Tensor norm = norm_of_norms(of_these, options.norm_type).mul(factor);
    are_over.push_back(norm.gt(options.max_norm));
    const at::Tensor coefficient = norm.add(kNormGuard).reciprocal().mul(options.max_norm).clamp_max(1.0);
    at::_foreach_mul_(gradients.other_tensors(places), coefficient.mul(factor).to(at::kFloat));
  }
  return at::stack(are_over).sum();
}

bool is_plain_gradient(const at::Tensor& gradient, const at::Tensor&) {
  return is_plain(gradient);
}

bool is_plain_pair(const at::Tensor& gradient, const at::Tensor& weight) {
  return has_plain_units(gradient) && has_plain_units(weight);
}

void check_limit(const char* key, double limit) {
  if (limit >= 0) return;
  fail(ErrorCode::invalid_argument, "numerics: {}: wanted at least 0, found {}", key, limit);
}

void check(const ClipOptions& options) {
  check_limit("max_norm", options.max_norm);
  check_limit("value", options.value);
  check_limit("ratio", options.ratio);
  if ((options.max_norm > 0) + (options.value > 0) + (options.ratio > 0) > 1) {
    fail(ErrorCode::invalid_argument,
         "numerics: clip_gradients wants one of max_norm, value and ratio, found {}, {} and {}", options.max_norm,
         options.value, options.ratio);
  }
  if (options.ratio > 0 && options.norm_type != GradNormType::l2) {
    fail(ErrorCode::invalid_argument, "numerics: norm_type: wanted l2 with a ratio of {}, found inf", options.ratio);
  }
}

}  // namespace

ClipOptions clip_options(const TrainOptions& options) {
  check_limit("max_grad_norm", options.max_grad_norm);
  check_limit("clip_grad_value", options.clip_grad_value);
  check_limit("clip_grad_ratio", options.clip_grad_ratio);
  const std::string contradiction = clip_contradiction(options, "");
  if (!contradiction.empty()) fail(ErrorCode::invalid_argument, "numerics: {}", contradiction);
  return {.max_norm = options.max_grad_norm,
          .norm_type = options.grad_norm_type,
          .value = options.clip_grad_value,
          .ratio = options.clip_grad_ratio};
}

std::vector<std::size_t> clip_parts(GradNormPer per, const std::vector<std::string>& names,
                                    const std::vector<std::size_t>& groups) {
  if (per == GradNormPer::model) return {};
  if (per == GradNormPer::group) return groups;
  std::map<std::string, std::size_t> layers;
  std::vector<std::size_t> parts;
  for (const std::string& name : names) {
    const std::size_t dot = name.rfind('.');
    const std::string layer = dot == std::string::npos ? "" : name.substr(0, dot);
    parts.push_back(layers.try_emplace(layer, layers.size()).first->second);
  }
  return parts;
}

NormFactors norm_factors(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                         const ClipOptions& options, double factor) {
  check(options);
  c10::AutoGradMode no_graph(false);
  const Gradients gradients = gradients_of(parameters, parts, is_plain_gradient);
  const std::vector<Extent> extents =
      extents_of(gradients, pieces_of(gradients), options.norm_type == GradNormType::inf);
  NormFactors result{report_of(together(extents), options.norm_type, factor), {}};
  if (!result.report.finite) return result;
  const std::vector<double> factors = factors_by_norm(gradients, extents, options, factor, result.report);
  result.factors.assign(parameters.size(), factor);
  for (std::size_t i = 0; i < factors.size(); ++i) result.factors[gradients.parameters[i]] = factors[i];
  return result;
}

ClipReport clip_gradients(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                          const ClipOptions& options, double factor) {
  check(options);
  c10::AutoGradMode no_graph(false);
  if (options.ratio > 0) return clip_by_ratio(gradients_of(parameters, parts, is_plain_pair), options, factor);
  const Gradients gradients = gradients_of(parameters, parts, is_plain_gradient);
  return options.value > 0 ? clip_by_value(gradients, options, factor) : clip_by_norm(gradients, options, factor);
}

DeviceClip clip_on_device(std::span<const at::Tensor> parameters, std::span<const std::size_t> parts,
                          const ClipOptions& options, double factor) {
  check(options);
  if (options.ratio > 0) fail(ErrorCode::invalid_argument, "numerics: clip_on_device has no ratio");
  c10::AutoGradMode no_graph(false);
  const auto takes_none = [](const at::Tensor&, const at::Tensor&) { return false; };
  const Gradients gradients = gradients_of(parameters, parts, takes_none);
  if (gradients.all.empty()) {
    const at::Tensor none = at::zeros({4}, parameters.front().options().dtype(at::kFloat));
    none.select(0, 3).fill_(-1);
    return {none, none.select(0, 2), {}};
  }
  const bool clips_norm = options.max_norm > 0;
  const GradNormType type = clips_norm || options.value > 0 ? options.norm_type : GradNormType::inf;
  const at::Tensor norms = norms_unread(gradients.all, type);
  const at::Tensor is_bad = norms.isfinite().logical_not();
  const at::Tensor norm = norm_of_norms(norms, type).mul(factor);
  const auto count = static_cast<std::int64_t>(gradients.all.size());
  const at::Tensor places = at::arange(count, norms.options());
  at::Tensor clipped = at::zeros({}, norms.options());
  if (clips_norm) {
    clipped = clip_parts_unread(gradients, norms, options, factor);
  } else {
    if (factor != 1.0) at::_foreach_mul_(gradients.all, at::Scalar(factor));
    if (options.value > 0) {
      clipped = norms_unread(gradients.all, GradNormType::inf).gt(options.value).sum();
      at::_foreach_clamp_min_(gradients.all, at::Scalar(-options.value));
      at::_foreach_clamp_max_(gradients.all, at::Scalar(options.value));
    }
  }
  const at::Tensor last_bad = at::where(is_bad, places, at::Scalar(-1.0)).max();
  // Of norms that are finite the sum of squares may not be.
  const at::Tensor found_inf = norm.isfinite().logical_not();
  const at::Tensor figures =
      at::stack({norm, clipped.to(at::kDouble), found_inf.to(at::kDouble), last_bad}).to(at::kFloat);
  return {figures, figures.select(0, 2), gradients.parameters};
}

}  // namespace headrace
