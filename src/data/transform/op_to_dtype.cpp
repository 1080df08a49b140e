// ToDtype.
#include <cstring>
#include <memory>

#include "data/transform/fused_operation.h"
#include "data/transform/pixel_copy.h"

namespace headrace {
namespace {

using transform::ToDtypePart;

DType dtype_of(PixelType type) noexcept {
  return type == PixelType::f32 ? DType::f32 : type == PixelType::bf16 ? DType::bf16 : DType::u8;
}

class Converting final : public transform::FusedOperation<ToDtypePart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "ToDtype"; }
  ImageSpec schema(const ImageSpec& in) const override { return {in.size, dtype_of(part().dtype)}; }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    if (out.image.image.dtype == DType::u8) return transform::copy_rectangle(in.image, 0, 0, out.image);
    const Geometry& size = in.image.image.size;
    const int values = size.width * size.channels;
    for (int y = 0; y < size.height; ++y) {
      const std::byte* const from = in.image.at(y, 0);
      std::byte* to = out.image.at(y, 0);
      for (int i = 0; i < values; ++i, to += sizeof(float)) {
        const float value = static_cast<float>(std::to_integer<int>(from[i])) / 255.0F;
        std::memcpy(to, &value, sizeof value);
      }
    }
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::ToDtype& parameters) {
  return std::make_unique<Converting>(parameters);
}

}  // namespace headrace
