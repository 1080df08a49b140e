// Normalize.
#include <cstring>
#include <memory>

#include "data/transform/fused_operation.h"
#include "data/transform/normalize.h"

namespace headrace {
namespace {

using transform::NormalizePart;

class Normalizing final : public transform::FusedOperation<NormalizePart> {
 public:
  using FusedOperation::FusedOperation;
  std::string_view name() const noexcept override { return "Normalize"; }
  bool takes(DType dtype) const noexcept override { return dtype == DType::f32 || dtype == DType::bf16; }
  ImageSpec schema(const ImageSpec& in) const override {
    transform::check_normalization(part().mean, part().std, in.size.channels);
    return in;
  }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    const Geometry& size = in.image.image.size;
    for (int y = 0; y < size.height; ++y) {
      for (int x = 0; x < size.width; ++x) normalize_pixel(in.image.at(y, x), size.channels, out.image.at(y, x));
    }
  }

 private:
  void normalize_pixel(const std::byte* from, int channels, std::byte* to) const {
    for (int c = 0; c < channels; ++c, from += sizeof(float), to += sizeof(float)) {
      float value;
      std::memcpy(&value, from, sizeof value);
      value = (value - of_channel(part().mean, c)) / of_channel(part().std, c);
      std::memcpy(to, &value, sizeof value);
    }
  }
  static float of_channel(const std::vector<double>& values, int channel) {
    return static_cast<float>(values[values.size() == 1 ? 0 : static_cast<std::size_t>(channel)]);
  }
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::Normalize& parameters) {
  return std::make_unique<Normalizing>(parameters);
}

}  // namespace headrace
