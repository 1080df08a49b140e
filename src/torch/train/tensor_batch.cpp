#include <headrace/tensor_batch.h>

#include <ATen/ops/sum.h>

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace {

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
  if (fields_.empty()) return 0;
  const Field& first = fields_.front();
  return first.offsets.defined() ? first.offsets.size(0) - 1 : first.values.size(0);
}

std::int64_t TensorBatch::counted() const {
  return valid.defined() ? valid.sum().item<std::int64_t>() : size();
}

}  // namespace headrace
