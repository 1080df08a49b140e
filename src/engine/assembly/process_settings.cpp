#include "engine/assembly/process_settings.h"

#include <ATen/Context.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/arange.h>

#include <array>
#include <atomic>
#include <limits>

#include "torch/tensor/allocator.h"
#include "torch/tensor/compute.h"

namespace headrace {
namespace {

// The mode is each thread's own. An iterator gives every compute thread one element; the caller is one of them.
bool set_for_compute_threads(bool on) {
  const at::Tensor one_each = at::arange(compute_threads(), at::kLong);
  std::atomic<bool> all = true;
  const auto set = [&](char**, const std::int64_t*, std::int64_t, std::int64_t) {
    if (!at::Context::setFlushDenormal(on)) all = false;
  };
  at::TensorIterator::borrowing_nullary_op(one_each).for_each(set, /*grain_size=*/1);
  return all;
}

// Of the calling thread.
bool flushes() {
  volatile float smallest = std::numeric_limits<float>::min();
  return smallest / 2 == 0;
}

const char* name_of(bool on) {
  return on ? "true" : "false";
}

Applied apply_flush_denormal(const Recipe& recipe) {
  const bool wanted = recipe.compute.flush_denormal, is_set = set_for_compute_threads(wanted);
  return {"compute.flush_denormal", name_of(wanted), name_of(flushes()),
          is_set ? "" : "this processor has no such mode"};
}

constexpr std::array kAll{
    ProcessSetting{.key = "compute.allocator",
                   .apply = [](const Recipe& recipe) { return apply_allocator(recipe.compute.allocator); }},
    ProcessSetting{.key = "compute.flush_denormal", .apply = apply_flush_denormal},
};

}  // namespace

std::span<const ProcessSetting> all_process_settings() {
  return kAll;
}

}  // namespace headrace
