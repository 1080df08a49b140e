// LibTorch's place for the allocator of CPU tensors, which arena and counting share.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "torch/tensor/detail/counted_blocks.h"

namespace headrace {

// Takes the place, once in a process, and keeps it until the process ends; it goes on giving LibTorch's own memory.
// Returns why it could not; empty: it is taken. While no other thread makes tensors.
std::string take_allocator_place();

// Counts what is allocated and freed from now on.
void begin_counting();
// nullptr: nobody counts, or another allocator has taken the place since. Any thread.
CountedBlocks* counted_blocks();
// Counts the memory of a tensor that was there before, where it came from LibTorch's allocator or from the arena.
// Only after begin_counting(), and while no other thread makes or ends tensors that share it.
void count_tensor(const at::Tensor& tensor);

}  // namespace headrace
