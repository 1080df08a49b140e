#include <headrace/tensor_batch.h>

#include <ATen/ops/sum.h>

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

std::int64_t samples_of(const TensorBatch::Field& field) {
  return field.offsets.defined() ? field.offsets.size(0) - 1 : field.values.size(0);
}

}  // namespace

TensorBatch::TensorBatch(std::initializer_list<std::pair<std::string, at::Tensor>> dense) {
  fields_.reserve(dense.size());
  for (const auto& [name, values] : dense) add({.name = name, .values = values});
}

const TensorBatch::Field& TensorBatch::field(std::string_view name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return field;
  }
  std::vector<std::string_view> names;
  for (const Field& field : fields_) names.emplace_back(field.name);
  fail(ErrorCode::invalid_argument, "train: a batch has no field '{}'; it has {}", name, fmt::join(names, ", "));
}

TensorBatch::Field& TensorBatch::field(std::string_view name) {
  return const_cast<Field&>(std::as_const(*this).field(name));
}

bool TensorBatch::has(std::string_view name) const noexcept {
  return std::any_of(fields_.begin(), fields_.end(), [name](const Field& field) { return field.name == name; });
}

void TensorBatch::add(Field field) {
  if (has(field.name)) fail(ErrorCode::invalid_argument, "train: a batch has a field '{}' already", field.name);
  fields_.push_back(std::move(field));
}

std::int64_t TensorBatch::size() const {
  return fields_.empty() ? 0 : samples_of(fields_.front());
}

std::int64_t TensorBatch::counted() const {
  return valid.defined() ? valid.sum().item<std::int64_t>() : size();
}

TensorBatch TensorBatch::part(std::int64_t begin, std::int64_t end) const {
  const std::int64_t samples = size();
  if (begin < 0 || end < begin || end > samples) {
    fail(ErrorCode::invalid_argument, "train: a part of a batch: wanted samples between 0 and {}, found {} to {}",
         samples, begin, end);
  }
  const auto cut = [begin, end](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, begin, end) : at::Tensor{};
  };
  TensorBatch part;
  for (const Field& field : fields_) {
    const std::int64_t found = samples_of(field);
    if (found != samples) {
      fail(ErrorCode::invalid_argument, "train: a part of a batch: field {}: wanted {} samples, found {}", field.name,
           samples, found);
    }
    Field some{.name = field.name, .shapes = cut(field.shapes), .present = cut(field.present)};
    if (field.offsets.defined()) {
      const at::Tensor offsets = field.offsets.slice(0, begin, end + 1);
      const auto first = offsets[0].item<std::int64_t>(), last = offsets[end - begin].item<std::int64_t>();
      some.values = field.values.slice(0, first, last);
      some.offsets = offsets.sub(first);
    } else {
      some.values = cut(field.values);
    }
    part.add(std::move(some));
  }
  part.valid = cut(valid);
  return part;
}

}  // namespace headrace
