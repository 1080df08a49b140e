// RandomHorizontalFlip.
#include <memory>

#include "data/transform/fused_operation.h"
#include "data/transform/pixel_copy.h"

namespace headrace {
namespace {

using transform::FlipPart;

class Flipping final : public transform::FusedOperation<FlipPart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "RandomHorizontalFlip"; }
  bool takes(DType dtype) const noexcept override { return transform::is_any_type(dtype); }
  bool draws() const noexcept override { return true; }
  // Whether it flips: 1 or 0.
  Drawn draw(SampleRandom& random, const Geometry&) const override {
    return {{random.uniform() < part().probability ? 1.0 : 0.0}};
  }
  void apply(const OperationInput& in, const Drawn& drawn, OperationOutput& out) const override {
    if (drawn.number(0) == 0) return transform::copy_rectangle(in.image, 0, 0, out.image);
    transform::copy_mirrored(in.image, out.image);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::RandomHorizontalFlip& parameters) {
  return std::make_unique<Flipping>(parameters);
}

}  // namespace headrace
