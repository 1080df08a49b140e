// What the section data.transform of a recipe means, as one pass: the list that it is short for, compiled.
#pragma once

#include <headrace/options/transform.h>

#include "data/transform/fused_stage.h"

namespace headrace::transform {

// Of images of `in`. The options have no transform_contradiction(), and a size where `in` is not fixed.
// Error{invalid_argument}: mean or std do not fit the channels.
FusedStage stage_of(const TransformOptions& options, Geometry in, bool training);
// Its crop alone, of images of any size.
CropStage crop_of(TransformOptions options, bool training);

}  // namespace headrace::transform
