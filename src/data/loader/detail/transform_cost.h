// What each optional transform adds to a sample, from the times of making the same samples with and without it.
#pragma once

#include <headrace/loader.h>
#include <headrace/options/data.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace headrace::detail {

// CPU seconds of making some samples.
struct Making {
  double read_s = 0;  // Rows of images that are read in part.
  double decode_s = 0;
  double augment_s = 0;

  double all_s() const { return read_s + decode_s + augment_s; }
};

// Makes the same samples by these options, with the draws of this epoch.
using MakeSamples = std::function<Making(const DataOptions& options, std::int64_t epoch)>;

// The dearest first. Calls `make` once, which is not counted, then in rounds, one epoch each, until it has told 0.7 s,
// at least 3 rounds, or after 2.1 s of a clock, at least 1.
std::vector<TransformCost> costs_of_transforms(const DataOptions& options, bool augment, const MakeSamples& make);

}  // namespace headrace::detail
