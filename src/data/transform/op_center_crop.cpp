// CenterCrop.
#include <memory>

#include "data/transform/crop.h"
#include "data/transform/fused_operation.h"
#include "data/transform/pixel_copy.h"

namespace headrace {
namespace {

using transform::CenterCropPart;

class CenterCropping final : public transform::FusedOperation<CenterCropPart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "CenterCrop"; }
  bool takes(DType dtype) const noexcept override { return transform::is_any_type(dtype); }
  ImageSpec schema(const ImageSpec& in) const override {
    return {{part().height, part().width, in.size.channels}, in.dtype};
  }
  // A smaller image lies in the middle of zeros, the odd one of which comes last.
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    const auto begin = [](int length, int size) {
      return size > length ? -((size - length) / 2) : transform::center_place(length, size);
    };
    const Geometry& size = in.image.image.size;
    transform::copy_rectangle(in.image, begin(size.height, part().height), begin(size.width, part().width), out.image);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::CenterCrop& parameters) {
  return std::make_unique<CenterCropping>(parameters);
}

}  // namespace headrace
