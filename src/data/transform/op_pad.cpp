// Pad.
#include <memory>

#include "data/transform/fused_operation.h"
#include "data/transform/pixel_copy.h"

namespace headrace {
namespace {

using transform::PadPart;
using transform::PadStage;

class Padding final : public transform::FusedOperation<PadPart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "Pad"; }
  bool takes(DType dtype) const noexcept override { return transform::is_any_type(dtype); }
  ImageSpec schema(const ImageSpec& in) const override {
    if (!in.size.is_fixed()) return in;
    const PadStage& pad = part().pad;
    return {{in.size.height + pad.top + pad.bottom, in.size.width + pad.left + pad.right, in.size.channels}, in.dtype};
  }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    transform::copy_rectangle(in.image, -part().pad.top, -part().pad.left, out.image);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::Pad& parameters) {
  return std::make_unique<Padding>(parameters);
}

}  // namespace headrace
