#include "data/transform/resize.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "core/base/fail.h"
#include "core/base/scratch.h"
#include "data/transform/resize_kernels.h"

namespace headrace::transform {
namespace {

// The filter of an axis: a triangle around each output's center that reaches `radius` pixels to each side.
struct Triangle {
  struct Reach {
    int begin, end;  // Pixels of the stretch, counted from `first`.
    double center;
  };

  explicit Triangle(const ResizeAxis& axis) noexcept
      : first(axis.begin / axis.divisor),
        size((axis.begin + axis.size + axis.divisor - 1) / axis.divisor - first),
        offset(static_cast<double>(axis.begin % axis.divisor) / axis.divisor),
        scale(static_cast<double>(axis.size) / axis.resized / axis.divisor),
        radius(std::max(scale, 1.0)),
        sharpness(1.0 / radius) {}

  Reach reach(int out) const noexcept {
    const double center = offset + (out + 0.5) * scale, behind = center + radius - 0.5;  // A pixel there has weight 0.
    const int last = static_cast<int>(behind);
    return {std::max(static_cast<int>(center - radius + 0.5), 0), std::min(last < behind ? last + 1 : last, size),
            center};
  }
  double weight(const Reach& reach, int at) const noexcept {
    return std::max(1.0 - std::abs(at + 0.5 - reach.center) * sharpness, 0.0);
  }

  int first, size;                  // Of the pixels at hand.
  double offset;                    // Of the stretch in its first pixel.
  double scale, radius, sharpness;  // The weight falls by the sharpness a pixel.
};

void check(const ResizeAxis& axis) noexcept {
  HEADRACE_CHECK(axis.begin >= 0 && axis.size >= 1 && axis.resized >= 1 && axis.out_begin >= 0 && axis.out_size >= 1 &&
                     axis.out_size <= axis.resized - axis.out_begin && axis.divisor >= 1,
                 "transform: {} + {} pixels resized to {}, of which {} + {} are wanted", axis.begin, axis.size,
                 axis.resized, axis.out_begin, axis.out_size);
}

// Bits of fraction of a weight, at most, and of a weight and what it is multiplied with: sums of 8 bits more fit 32.
constexpr int kBitsMax = 22, kProductBitsMax = 23;
// Of a value between the axes, which has 16 bits and a sign.
constexpr int kFractionMax = 7;

// Weights of the wanted outputs of one axis, in fixed point. Kept until another axis is asked for.
class AxisTaps {
 public:
  void make(const ResizeAxis& axis);
  // From output `out` on; begins count from the first pixel of what is needed().
  resize_passes::Taps from(int out) const noexcept {
    return {begins_.data() + out, weights_.data() + static_cast<std::ptrdiff_t>(out) * count_, count_, bits_};
  }
  int bits() const noexcept { return bits_; }
  int count() const noexcept { return count_; }

 private:
  double weigh(const ResizeAxis& axis);

  ResizeAxis axis_;
  int count_ = 0;
  int bits_ = 0;
  std::vector<int> begins_;
  std::vector<std::int16_t> weights_;  // outputs x count_.
  std::vector<double> exact_;          // The same.
};

// Makes begins_, count_ and exact_; returns the greatest weight.
double AxisTaps::weigh(const ResizeAxis& axis) {
  const Triangle triangle{axis};
  const int whole = static_cast<int>(2 * triangle.radius);
  const int most = whole < 2 * triangle.radius ? whole + 1 : whole;
  count_ = most + most % 2;
  begins_.resize(static_cast<std::size_t>(axis.out_size));
  exact_.assign(begins_.size() * static_cast<std::size_t>(count_), 0.0);
  const int origin = triangle.reach(axis.out_begin).begin;
  double greatest = 0, *weights = exact_.data();
  for (int j = 0; j < axis.out_size; ++j, weights += count_) {
    const Triangle::Reach reach = triangle.reach(axis.out_begin + j);
    begins_[static_cast<std::size_t>(j)] = reach.begin - origin;
    const int count = std::min(reach.end - reach.begin, count_);  // More could only weigh what rounding left.
    double sum = 0, largest = 0;
    for (int k = 0; k < count; ++k) {
      weights[k] = triangle.weight(reach, reach.begin + k);
      sum += weights[k];
      largest = std::max(largest, weights[k]);
    }
    const double share = 1.0 / sum;
    for (int k = 0; k < count; ++k) weights[k] *= share;
    greatest = std::max(greatest, largest * share);
  }
  return greatest;
}

void AxisTaps::make(const ResizeAxis& axis) {
  if (axis == axis_) return;
  axis_ = {};  // Nothing, should an allocation fail.
  const double greatest = weigh(axis);
  bits_ = kBitsMax;
  while (greatest * (1 << bits_) > std::numeric_limits<std::int16_t>::max() - 1) --bits_;
  const auto taps = static_cast<std::size_t>(count_);
  weights_.resize(exact_.size());
  for (std::size_t output = 0; output < exact_.size(); output += taps) {
    double sum = 0;
    int before = 0;
    for (std::size_t k = output; k < output + taps; ++k) {  // Differences of rounded sums: together they are 1.
      sum += exact_[k] * (1 << bits_);
      const int now = static_cast<int>(sum + 0.5);
      weights_[k] = static_cast<std::int16_t>(now - before);
      before = now;
    }
  }
  axis_ = axis;
}

std::int16_t* aligned(std::int16_t* scratch) noexcept {
  return reinterpret_cast<std::int16_t*>((reinterpret_cast<std::uintptr_t>(scratch) + 63) / 64 * 64);
}

// The rows one behind the other: as they are, or copied to `scratch`.
std::span<const std::uint8_t> without_gaps(std::span<const std::uint8_t> values, std::ptrdiff_t stride,
                                           std::ptrdiff_t row_values, std::vector<std::uint8_t>& scratch) {
  if (stride == row_values) return values;
  const std::ptrdiff_t rows = (std::ssize(values) + stride - row_values) / stride;
  scratch_of(scratch, rows * row_values);
  for (std::ptrdiff_t y = 0; y < rows; ++y) {
    std::copy_n(values.data() + y * stride, row_values, scratch.data() + y * row_values);
  }
  return std::span{scratch}.first(static_cast<std::size_t>(rows * row_values));
}

}  // namespace

Stretch needed(const ResizeAxis& axis) noexcept {
  check(axis);
  const Triangle triangle{axis};
  const int begin = triangle.reach(axis.out_begin).begin;
  return {triangle.first + begin, triangle.reach(axis.out_begin + axis.out_size - 1).end - begin};
}

struct Resizer::Impl {
  AxisTaps vertical, horizontal;
  std::vector<std::int16_t> columns;  // Of a strip, between the axes.
  std::vector<std::uint8_t> rows;     // Of a strip, resized.
  std::vector<std::uint8_t> cut;      // What is not resized, without what lay between its rows.
};

Resizer::Resizer() : impl_(std::make_unique<Impl>()) {}
Resizer::~Resizer() = default;
Resizer::Resizer(Resizer&&) noexcept = default;
Resizer& Resizer::operator=(Resizer&&) noexcept = default;

void Resizer::resize(const PixelRows& pixels, const ResizeAxis& vertical, const ResizeAxis& horizontal, int channels,
                     std::span<std::uint8_t> out) {
  resize(pixels, vertical, horizontal, channels, /*flip=*/false, PixelForm{}, std::as_writable_bytes(out));
}

void Resizer::resize(const PixelRows& pixels, const ResizeAxis& vertical, const ResizeAxis& horizontal, int channels,
                     bool flip, const PixelForm& form, std::span<std::byte> out) {
  const Stretch rows = needed(vertical), columns = needed(horizontal);
  HEADRACE_CHECK(channels >= 1 && channels <= 4, "transform: images of {} channels", channels);
  const std::ptrdiff_t row_values = static_cast<std::ptrdiff_t>(columns.size) * channels;
  const std::ptrdiff_t stride = pixels.stride == 0 ? row_values : pixels.stride;
  const std::ptrdiff_t out_stride = static_cast<std::ptrdiff_t>(horizontal.out_size) * channels;
  const auto out_size = static_cast<std::size_t>(out_stride * vertical.out_size) * bytes_of(form.type);
  const std::ptrdiff_t values = stride * (rows.size - 1) + row_values;
  HEADRACE_CHECK(std::ssize(pixels.values) == values && stride >= row_values && out.size() == out_size,
                 "transform: {} bytes resized to {}; wanted {} to {}", pixels.values.size(), out.size(), values,
                 out_size);

  const bool shrunk = vertical.divisor * horizontal.divisor > 1;
  if (vertical.size == vertical.resized && horizontal.size == horizontal.resized && !shrunk) {
    const NormalizeGeometry whole{
        .height = vertical.out_size, .width = horizontal.out_size, .channels = channels, .flip = flip};
    return normalize(without_gaps(pixels.values, stride, row_values, impl_->cut), whole, form, out);
  }
  Impl& self = *impl_;
  self.vertical.make(vertical);
  self.horizontal.make(horizontal);
  const resize_passes::Kernels& kernels = resize_passes::kernels();
  constexpr std::ptrdiff_t kMargin = resize_passes::kMargin, kAligned = 64 / sizeof(std::int16_t);
  scratch_of(self.columns, resize_passes::scratch_size(columns.size, self.horizontal.count(), channels) + kAligned);
  const bool planes = form.layout == PixelLayout::nchw && channels > 1;
  const std::ptrdiff_t plane = horizontal.out_size + kMargin;
  const std::ptrdiff_t row = planes ? channels * plane : out_stride + kMargin;
  scratch_of(self.rows, kMargin + kernels.rows * row);

  resize_passes::Strip strip{.pixels = pixels.values.data(),
                             .stride = stride,
                             .source_rows = rows.size,
                             .columns = columns.size,
                             .channels = channels,
                             .horizontal = self.horizontal.from(0),
                             .outputs = horizontal.out_size,
                             .fraction = std::min(kFractionMax, kProductBitsMax - self.horizontal.bits()),
                             .flip = flip,
                             .scratch = aligned(self.columns.data()),
                             .out = self.rows.data() + kMargin,
                             .row_stride = row,
                             .plane_stride = planes ? plane : 0};
  for (int y = 0; y < vertical.out_size; y += kernels.rows) {
    strip.vertical = self.vertical.from(y);
    strip.rows = std::min(kernels.rows, vertical.out_size - y);
    kernels.resize(strip);
    write_rows({strip.out, row, plane, y, strip.rows}, vertical.out_size, horizontal.out_size, channels, form,
               out.data());
  }
}

}  // namespace headrace::transform
