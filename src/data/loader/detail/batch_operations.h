// Operations over whole batches, and what a plan wants of the loader that runs it.
#pragma once

#include <headrace/options/data.h>

#include "data/loader/detail/batch_layout.h"
#include "data/loader/detail/slot.h"
#include "data/transform/plan.h"

namespace headrace::detail {

// Error{invalid_argument}: batches, or the last of an epoch, are too small for an operation, a field that it wants is
// ragged, or images that are decoded smaller for one sample are wanted by another.
void check_plan(const transform::Plan& plan, const BatchLayout& layout, const DataOptions& options,
                std::int64_t last_batch_size);

// All operations over batches, on the batch in `slot`, whose samples are made. `key.index`: the position of its first
// sample in the epoch. Error{invalid_argument}: it is smaller than an operation wants.
void apply_over_batch(const transform::Plan& plan, const BatchLayout& layout, Batch::Slot& slot, const SampleKey& key);

}  // namespace headrace::detail
