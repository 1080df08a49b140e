// Lists of operations: what [data.transform] says as one, and back; and that of evaluation.
#pragma once

#include <headrace/options/data.h>
#include <headrace/options/transform.h>
#include <headrace/options/transforms.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// Of a source's images. 0: each has its own.
struct StoredSize {
  std::int64_t height = 0, width = 0;
};

// What the options mean: with a size, a crop to it (in evaluation Resize and CenterCrop whatever the crop); in training
// then RandomCrop with padding to the size that the image has, and RandomHorizontalFlip; ToDtype and Normalize, each
// only where there is something to do. Their layout is that of batches, not a list's.
// Error{invalid_argument}: pad without size, where images have sizes of their own.
std::vector<TransformSpec> transforms_of(const TransformOptions& options, bool training, StoredSize stored);

// Evaluation's list, where only `transforms` are given: what draws at random is left out, but random crops take the
// center. RandomResizedCrop becomes Resize, with the shorter side 8/7 of the crop's longer one, and CenterCrop.
// RandomCrop becomes CenterCrop; behind a Resize to 8/7 where nothing resized the image, padding does not enlarge it
// and it is not known to be large enough; and nothing where the image has its size before it.
std::vector<TransformSpec> eval_transforms_of(const std::vector<TransformSpec>& transforms, StoredSize stored);

// What is done to a sample in training or in evaluation, by list or by shorthand.
std::vector<TransformSpec> transforms_in_force(const DataOptions& options, bool training, StoredSize stored);

// The options that mean this list in training or in evaluation, the others at their defaults; nullopt: none do.
// Equal options give equal batches: a number in `size` that stands twice, a flip of probability 0 and the like do not
// count, and a resize that is the default one is 0.
std::optional<TransformOptions> shorthand_of(const std::vector<TransformSpec>& transforms, bool training,
                                             StoredSize stored);
// The options that mean both lists, each in its time.
std::optional<TransformOptions> shorthand_of(const std::vector<TransformSpec>& transforms,
                                             const std::vector<TransformSpec>& eval_transforms, StoredSize stored);

// Options without lists that give the same samples: their `transform` means both lists if any does, else the one that
// is in force. Where none means that one, the options as they are.
DataOptions with_shorthand(DataOptions options, bool training, StoredSize stored);

// Whether a list or the shorthand makes images of one size of images of any. Padding alone, without pad_if_needed, is
// what images of one size get.
bool makes_one_size(const DataOptions& options);

// The type that a list leaves pixels in, as its ToDtype names it.
std::string dtype_after(const std::vector<TransformSpec>& transforms);

}  // namespace headrace
