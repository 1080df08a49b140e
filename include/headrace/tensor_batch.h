// A batch on the device, as a forward takes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

// Named tensors: batch["image"], batch["labels"]. A value; copies share the tensors. A name is looked up among a few
// for each use, which is once a batch and not once a sample.
class TensorBatch {
 public:
  // A field of samples that differ in shape has its values one behind the other, as BatchField tells.
  struct Field {
    std::string name;
    at::Tensor values;
    at::Tensor offsets{};  // (N + 1) int64. Undefined: the samples lie along the first axis.
    at::Tensor shapes{};   // (N, axes) int64. Undefined: the first axis alone differs.
    at::Tensor present{};  // (N) uint8, 1 where the sample has it. Undefined: all have.
  };

  TensorBatch() = default;
  TensorBatch(std::initializer_list<std::pair<std::string, at::Tensor>> dense);

  // Error{invalid_argument} lists the names there are.
  at::Tensor& operator[](std::string_view name) { return field(name).values; }
  const at::Tensor& operator[](std::string_view name) const { return field(name).values; }
  Field& field(std::string_view name);
  const Field& field(std::string_view name) const;
  bool has(std::string_view name) const noexcept;
  const std::vector<Field>& fields() const noexcept { return fields_; }
  void add(Field field);  // Error{invalid_argument}: there is one of this name.

  // (N) uint8: 1 where the sample counts, 0 where it only fills the batch up; undefined when all do.
  at::Tensor valid{};

  std::int64_t size() const;     // Samples. Of no fields 0.
  std::int64_t counted() const;  // Of them, those that count.

  // Samples `begin` to before `end`, sharing the memory. Of ragged fields it reads two offsets, from the device where
  // they are there. Error{invalid_argument}: there are none such, or a field has another number of samples.
  TensorBatch part(std::int64_t begin, std::int64_t end) const;

 private:
  std::vector<Field> fields_;
};

}  // namespace headrace
