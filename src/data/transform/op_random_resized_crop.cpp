// RandomResizedCrop.
#include <memory>

#include "data/transform/crop.h"
#include "data/transform/fused_operation.h"

namespace headrace {
namespace {

using transform::CropStage;
using transform::CropWindow;
using transform::RandomResizedCropPart;

class RandomResizedCropping final : public transform::FusedOperation<RandomResizedCropPart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "RandomResizedCrop"; }
  bool draws() const noexcept override { return true; }
  ImageSpec schema(const ImageSpec& in) const override {
    return {{part().height, part().width, in.size.channels}, in.dtype};
  }
  // The rectangle: y, x, height, width.
  Drawn draw(SampleRandom& random, const Geometry& in) const override {
    const CropWindow window = transform::choose_crop(transform::crop_of(part()), in.height, in.width, random);
    const auto& [rows, columns] = window;
    return {{static_cast<double>(rows.begin), static_cast<double>(columns.begin), static_cast<double>(rows.size),
             static_cast<double>(columns.size)}};
  }
  void apply(const OperationInput& in, const Drawn& drawn, OperationOutput& out) const override {
    const Geometry& size = in.image.image.size;
    transform::resize_into(transform::crop_drawn(transform::crop_of(part()), size.height, size.width, drawn), in,
                           out.image);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::RandomResizedCrop& parameters) {
  return std::make_unique<RandomResizedCropping>(parameters);
}

}  // namespace headrace
