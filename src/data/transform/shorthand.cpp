#include "data/transform/shorthand.h"

#include <string>

#include "data/transform/fuse.h"
#include "data/transform/plan.h"

namespace headrace::transform {
namespace {

void add_crop(const TransformOptions& options, bool training, std::vector<TransformSpec>& operations) {
  if (options.size == 0) return;
  const Crop crop = training ? options.crop : Crop::center;
  if (crop == Crop::random_resized) {
    operations.push_back(
        transforms::RandomResizedCrop{.size = {options.size}, .scale = options.scale, .ratio = options.ratio});
    return;
  }
  operations.push_back(transforms::Resize{.size = {options.resized_side()}});
  if (crop == Crop::random) {
    operations.push_back(transforms::RandomCrop{.size = {options.size}});
  } else {
    operations.push_back(transforms::CenterCrop{.size = {options.size}});
  }
}

std::string dtype_of(PixelType type) {
  for (const auto& choice : choices(PixelType{})) {
    if (choice.value == type) return std::string(choice.name);
  }
  return "";
}

}  // namespace

std::vector<TransformSpec> operations_of(const TransformOptions& options, Geometry in, bool training) {
  std::vector<TransformSpec> operations;
  add_crop(options, training, operations);
  if (training && options.pad > 0) {
    transforms::RandomCrop crop{.size = {options.size}, .padding = {options.pad}};
    if (options.size == 0) crop.size = {in.height, in.width};
    operations.push_back(std::move(crop));
  }
  if (training && options.flip_probability > 0) {
    operations.push_back(transforms::RandomHorizontalFlip{.p = options.flip_probability});
  }
  if (options.dtype == PixelType::u8) return operations;
  operations.push_back(transforms::ToDtype{.dtype = dtype_of(options.dtype)});
  const TransformOptions neutral;
  if (options.mean != neutral.mean || options.std != neutral.std) {
    operations.push_back(transforms::Normalize{.mean = options.mean, .std = options.std});
  }
  return operations;
}

FusedStage stage_of(const TransformOptions& options, Geometry in, bool training) {
  const Schema schema = Schema::image_and_labels(in.height, in.width, in.channels);
  return Plan{operations_of(operations_of(options, in, training)), schema, options.layout}.first();
}

CropStage crop_of(const TransformOptions& options, bool training) {
  std::vector<TransformSpec> operations;
  add_crop(options, training, operations);
  Fusing fusing{{}};
  for (const TransformSpec& operation : operations) fusing.take(make_operation(operation)->fusion()->part);
  return fusing.crop();
}

}  // namespace headrace::transform
