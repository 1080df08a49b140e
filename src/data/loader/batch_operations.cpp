#include "data/loader/detail/batch_operations.h"

#include <algorithm>
#include <span>

#include "core/base/fail.h"
#include "data/transform/operation_error.h"

namespace headrace::detail {
namespace {

DType dtype_of(PixelType type) noexcept {
  return type == PixelType::f32 ? DType::f32 : type == PixelType::bf16 ? DType::bf16 : DType::u8;
}

// Null: it is ragged.
const BatchLayout::Dense* dense_field(const BatchLayout& layout, std::size_t position) {
  const auto found = std::find_if(layout.dense.begin(), layout.dense.end(),
                                  [position](const auto& dense) { return dense.field == position; });
  return found == layout.dense.end() ? nullptr : &*found;
}

std::span<std::byte> rows_of(const BatchLayout::Dense& field, const Batch::Slot& slot) {
  return {slot.start + field.at, field.sample_bytes * static_cast<std::size_t>(slot.size)};
}

}  // namespace

void check_plan(const transform::Plan& plan, const BatchLayout& layout, const DataOptions& options,
                std::int64_t last_batch_size) {
  if (plan.partner_step() && options.scale_decode) {
    fail(ErrorCode::invalid_argument,
         "data: data.scale_decode is true, and {} reads other samples; wanted one of the two",
         plan.operations()[plan.steps()[*plan.partner_step()].first]->name());
  }
  for (std::size_t i = 0; i < plan.over_batches().size(); ++i) {
    const Operation& operation = *plan.over_batches()[i];
    if (options.batch_size < operation.batch_min()) {
      fail(ErrorCode::invalid_argument, "data: {} over batches of {}; wanted data.batch_size of at least {}",
           operation.name(), options.batch_size, operation.batch_min());
    }
    if (last_batch_size < operation.batch_min()) {
      fail(ErrorCode::invalid_argument,
           "data: {} over batches, the last of an epoch of {} sample{}; wanted at least {}, or data.last_batch = "
           "\"drop\"",
           operation.name(), last_batch_size, last_batch_size == 1 ? "" : "s", operation.batch_min());
    }
    for (const std::size_t position : plan.fields_of(plan.operations().size() + i)) {
      if (dense_field(layout, position) != nullptr) continue;
      fail(ErrorCode::invalid_argument, "data: {} wants field {} of one shape in all samples; it is {}",
           operation.name(), plan.schema()[position].name, plan.schema().text());
    }
  }
}

void apply_over_batch(const transform::Plan& plan, const BatchLayout& layout, Batch::Slot& slot, const SampleKey& key) {
  for (std::size_t i = 0; i < plan.over_batches().size(); ++i) {
    const Operation& operation = *plan.over_batches()[i];
    if (slot.size < operation.batch_min()) {
      fail(ErrorCode::invalid_argument,
           "data: {} over batch {} of {} sample{}; wanted at least {}: data.last_batch keeps what is left over",
           operation.name(), slot.index, slot.size, slot.size == 1 ? "" : "s", operation.batch_min());
    }
    slot.over_batch.clear();
    for (const std::size_t position : plan.fields_of(plan.operations().size() + i)) {
      slot.over_batch.push_back(rows_of(*dense_field(layout, position), slot));
    }
    SampleRandom random{key.seed ^ plan.batch_key(i), key.epoch, key.index};
    const BatchView batch{.size = slot.size,
                          .valid = slot.valid,
                          .images = rows_of(*layout.image, slot),
                          .image = {plan.size(), dtype_of(plan.type())},
                          .layout = plan.layout(),
                          .fields = slot.over_batch};
    try {
      operation.apply_batch(batch, random);
    } catch (...) {
      transform::rethrow_of(operation, fmt::format(" over batch {}", slot.index));
    }
  }
}

}  // namespace headrace::detail
