// RandomGrayscale.
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/fail.h"
#include "data/transform/fused_operation.h"
#include "data/transform/pixel_copy.h"

namespace headrace {
namespace {

// sum + weight * value, rounded once: the product and nearly every sum are exact in float64.
float add_weighted(float sum, float weight, float value) noexcept {
  return static_cast<float>(static_cast<double>(weight) * value + sum);
}

// The bits of torchvision's rgb_to_grayscale on x86: fused sums, and uint8 rounded towards 0.
template <class Value>
void take_colours(const ImageView& from, const ImageTarget& to) noexcept {
  const Geometry& size = from.image.size;
  for (int y = 0; y < size.height; ++y) {
    const std::byte* in = from.at(y, 0);
    std::byte* out = to.at(y, 0);
    for (int x = 0; x < size.width; ++x, in += 3 * sizeof(Value), out += 3 * sizeof(Value)) {
      std::array<Value, 3> rgb{};
      std::memcpy(rgb.data(), in, sizeof rgb);
      const float red = 0.2989F * static_cast<float>(rgb[0]);
      const float two = add_weighted(red, 0.587F, static_cast<float>(rgb[1]));
      rgb.fill(static_cast<Value>(add_weighted(two, 0.114F, static_cast<float>(rgb[2]))));
      std::memcpy(out, rgb.data(), sizeof rgb);
    }
  }
}

class Graying final : public Operation {
 public:
  explicit Graying(const transforms::RandomGrayscale& parameters)
      : probability_(parameters.p), parameters_(parameters_of(parameters)) {}

  std::string_view name() const noexcept override { return "RandomGrayscale"; }
  std::vector<OperationParameter> parameters() const override { return parameters_; }
  bool takes(DType dtype) const noexcept override { return transform::is_any_type(dtype); }
  ImageSpec schema(const ImageSpec& in) const override {
    const int channels = in.size.channels;
    if (channels != 1 && channels != 3) {
      fail(ErrorCode::unsupported, "transform: RandomGrayscale takes images of 1 or 3 channels; these have {}",
           channels);
    }
    return in;
  }
  bool draws() const noexcept override { return true; }
  // Whether it takes the colours off: 1 or 0.
  Drawn draw(SampleRandom& random, const Geometry&) const override {
    return {{random.uniform() < probability_ ? 1.0 : 0.0}};
  }
  void apply(const OperationInput& in, const Drawn& drawn, OperationOutput& out) const override {
    const ImageSpec& image = in.image.image;
    if (drawn.number(0) == 0 || image.size.channels == 1) {
      return transform::copy_rectangle(in.image, 0, 0, out.image);
    }
    if (image.held() == DType::u8) return take_colours<std::uint8_t>(in.image, out.image);
    take_colours<float>(in.image, out.image);
  }

 private:
  const double probability_;
  const std::vector<OperationParameter> parameters_;
};

}  // namespace

std::unique_ptr<const Operation> make_operation(const transforms::RandomGrayscale& parameters) {
  return std::make_unique<Graying>(parameters);
}

}  // namespace headrace
