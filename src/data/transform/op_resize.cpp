// Resize.
#include <algorithm>
#include <cstdint>
#include <limits>
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
    if (!in.size.is_fixed() && part().shorter > 0) return in;  // Each has a size of its own, still.
    if (part().shorter > 0 && part().longer_max == 0) check_longer(in.size);
    return {transform::resized_size(part(), in.size), in.dtype};
  }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    const Geometry &from = in.image.image.size, &to = out.image.image.size;
    transform::resize_into({{0, from.height, to.height, 0, to.height}, {0, from.width, to.width, 0, to.width}}, in,
                           out.image);
  }

 private:
  // No image that is read comes near; what an operation before leaves may be any.
  void check_longer(const Geometry& in) const {
    const std::int64_t shorter = std::min(in.height, in.width), longer = std::max(in.height, in.width);
    const std::int64_t resized = part().shorter * longer / shorter;
    if (resized <= std::numeric_limits<int>::max()) return;
    fail(ErrorCode::unsupported, "transform: Resize of {} x {} pixels to {} along the shorter side: {} along the other",
         in.height, in.width, part().shorter, resized);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::Resize& parameters) {
  return std::make_unique<Resizing>(parameters);
}

}  // namespace headrace
