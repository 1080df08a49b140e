// Work in parts on the compute threads. at::parallel_for is serial in code that is compiled without OpenMP, and with
// OpenMP such code brings a second pool of threads; an iterator runs on LibTorch's own.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/ops/arange.h>

#include <cstdint>

namespace headrace {

// Calls work(begin, end) with ranges that together are 0 to count, on several threads at once. `work` throws nothing.
template <class Work>
void for_each_range(std::int64_t count, const Work& work) {
  const at::Tensor indices = at::arange(count, at::kLong);
  const auto some = [&work](char** data, const std::int64_t* strides, std::int64_t size, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) {  // Of consecutive ones.
      const std::int64_t first = *reinterpret_cast<const std::int64_t*>(data[0] + row * strides[1]);
      work(first, first + size);
    }
  };
  at::TensorIterator::borrowing_nullary_op(indices).for_each(some, /*grain_size=*/1);
}

}  // namespace headrace
