#include "data/transform/shorthand.h"

#include "core/options/transforms.h"
#include "data/transform/fuse.h"
#include "data/transform/plan.h"

namespace headrace::transform {

FusedStage stage_of(const TransformOptions& options, Geometry in, bool training) {
  const Schema schema = Schema::image_and_labels(in.height, in.width, in.channels);
  const auto list = transforms_of(options, training, {in.height, in.width});
  return Plan{operations_of(list), schema, options.layout}.first();
}

CropStage crop_of(TransformOptions options, bool training) {
  options.pad = 0;
  options.flip_probability = 0;
  options.dtype = PixelType::u8;
  Fusing fusing{{}};
  for (const TransformSpec& spec : transforms_of(options, training, {})) {
    fusing.take(make_operation(spec)->fusion()->part);
  }
  return fusing.crop();
}

}  // namespace headrace::transform
