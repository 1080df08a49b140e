// RandomCrop.
#include <memory>

#include "core/base/fail.h"
#include "data/transform/fused_operation.h"
#include "data/transform/pixel_copy.h"

namespace headrace {
namespace {

using transform::PadStage;
using transform::RandomCropPart;

class RandomCropping final : public transform::FusedOperation<RandomCropPart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "RandomCrop"; }
  bool takes(DType dtype) const noexcept override { return transform::is_any_type(dtype); }
  bool draws() const noexcept override { return true; }
  ImageSpec schema(const ImageSpec& in) const override {
    if (in.size.is_fixed()) check_fit(in.size);
    return {{part().height, part().width, in.size.channels}, in.dtype};
  }
  // A place within the padded image: y, then x.
  Drawn draw(SampleRandom& random, const Geometry& in) const override {
    const PadStage pad = padding(in);
    Drawn drawn;
    drawn.numbers[0] = random.below(static_cast<std::uint32_t>(in.height + pad.top + pad.bottom - part().height + 1));
    drawn.numbers[1] = random.below(static_cast<std::uint32_t>(in.width + pad.left + pad.right - part().width + 1));
    return drawn;
  }
  void apply(const OperationInput& in, const Drawn& drawn, OperationOutput& out) const override {
    const PadStage pad = padding(in.image.image.size);
    transform::copy_rectangle(in.image, drawn.number(0) - pad.top, drawn.number(1) - pad.left, out.image);
  }

 private:
  // As torchvision has it: what is missing is added on both size.
  PadStage padding(const Geometry& in) const {
    PadStage pad = part().pad;
    if (!part().pads_if_needed) return pad;
    if (const int missing = part().height - (in.height + pad.top + pad.bottom); missing > 0) {
      pad.top += missing, pad.bottom += missing;
    }
    if (const int missing = part().width - (in.width + pad.left + pad.right); missing > 0) {
      pad.left += missing, pad.right += missing;
    }
    return pad;
  }
  void check_fit(const Geometry& in) const {
    const PadStage pad = padding(in);
    const int height = in.height + pad.top + pad.bottom, width = in.width + pad.left + pad.right;
    if (height >= part().height && width >= part().width) return;
    fail(ErrorCode::unsupported,
         "transform: RandomCrop of {} x {} pixels of an image of {} x {}; pad_if_needed pads it", part().height,
         part().width, height, width);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::RandomCrop& parameters) {
  return std::make_unique<RandomCropping>(parameters);
}

}  // namespace headrace
