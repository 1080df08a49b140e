// The operations that the section data.transform of a recipe is short for.
#pragma once

#include <headrace/options/transform.h>
#include <headrace/options/transforms.h>

#include <vector>

#include "data/transform/fused_stage.h"

namespace headrace::transform {

// Of images of `in`. Without `training` those of an evaluation: the shorter side is resized, the center is taken, and
// nothing is drawn. The options have no transform_contradiction(), and a size where `in` is not fixed.
std::vector<TransformSpec> operations_of(const TransformOptions& options, Geometry in, bool training);

// The same as one pass. Error{invalid_argument}: mean or std do not fit the channels.
FusedStage stage_of(const TransformOptions& options, Geometry in, bool training);
// Its crop alone, of images of any sides.
CropStage crop_of(const TransformOptions& options, bool training);

}  // namespace headrace::transform
