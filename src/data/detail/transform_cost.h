// What each optional transform adds to a sample, from the times of making the same samples with and without it.
#pragma once

#include <headrace/loader.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "data/data_options.h"

namespace headrace::detail {

// CPU seconds of making the same samples by these options, with the draws of this epoch.
using MakingSeconds = std::function<double(const DataOptions& options, std::int64_t epoch)>;

// The dearest first. Calls `making` in rounds, one epoch each, until it has told 0.7 s, at least 3 rounds.
std::vector<TransformCost> costs_of_transforms(const DataOptions& options, bool augment, const MakingSeconds& making);

}  // namespace headrace::detail
