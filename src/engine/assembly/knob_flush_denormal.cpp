#include <ATen/Context.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/arange.h>

#include <atomic>
#include <limits>

#include "engine/assembly/knob.h"
#include "torch/tensor/compute.h"

namespace headrace::knobs {
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

}  // namespace

// The loader's threads have the mode of the one that started them, and a loader without threads that of the caller. No
// byte of a batch depends on it: pixels over a standard deviation of at most 1,000 are 0 or far above 1e-38.
Knob flush_denormal() {
  return {.key = "compute.flush_denormal",
          .name = "denormals as 0",
          .not_applicable = [](const KnobContext& context) -> std::string {
            return context.recipe.compute.flush_denormal ? "numbers below 1.2e-38 count as 0 already" : "";
          },
          .values = [](const KnobContext&) -> std::vector<KnobValue> {
            return {{.name = "denormals as 0",
                     .sentence = "Numbers below 1.2e-38 count as 0, which spares what they cost the processor.",
                     .changes = {{"compute.flush_denormal", "true"}}}};
          },
          .numerics = NumericClass::rounding,
          .resource = "compute",
          .apply = [](const Recipe& recipe) -> Applied {
            const bool wanted = recipe.compute.flush_denormal, is_set = set_for_compute_threads(wanted);
            return {"compute.flush_denormal", name_of(wanted), name_of(flushes()),
                    is_set ? "" : "this processor has no such mode"};
          },
          .in_force = [] { return std::string(name_of(flushes())); }};
}

}  // namespace headrace::knobs
