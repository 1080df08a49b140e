// Resize.
#include <memory>

#include "core/base/fail.h"
#include "data/transform/crop.h"
#include "data/transform/fused_operation.h"
#include "data/transform/resize.h"

namespace headrace {
namespace {

using transform::ResizePart;

class Resizing final : public transform::FusedOperation<ResizePart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "Resize"; }
  ImageSpec schema(const ImageSpec& in) const override {
    if (in.sides.is_fixed() || part().shorter == 0) return {transform::resized_sides(part(), in.sides), in.dtype};
    return in;  // Each has sides of its own, still.
  }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    const Geometry &from = in.image.image.sides, &to = out.image.image.sides;
    transform::resize_into({{0, from.height, to.height, 0, to.height}, {0, from.width, to.width, 0, to.width}}, in,
                           out.image);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::Resize& parameters) {
  return std::make_unique<Resizing>(parameters);
}

}  // namespace headrace
