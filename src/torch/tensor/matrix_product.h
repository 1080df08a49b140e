// A large product of matrices, as LibTorch computes it: what a machine's peak is measured by.
#pragma once

#include <cstdint>
#include <functional>

namespace headrace {

// Multiplies two float32 matrices of n x n with the compute threads in force, into a third that it keeps between calls
// of the same n. Draws from no generator, and records no graph.
std::function<void(std::int64_t n)> matrix_product();

}  // namespace headrace
