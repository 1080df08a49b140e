#include "image/resize.h"

#include <headrace/error.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "image/resize_kernels.h"

namespace headrace::image {
namespace {

// The filter over one output: a triangle around `center` that reaches `radius` pixels to each side.
struct Reach {
  int begin, end;            // Pixels of the stretch, counted from its begin.
  double center, sharpness;  // The weight falls by that much a pixel.

  Reach(const ResizeAxis& axis, int out) noexcept {
    const double scale = static_cast<double>(axis.size) / axis.resized, radius = std::max(scale, 1.0);
    sharpness = 1.0 / radius;
    center = (out + 0.5) * scale;
    begin = std::max(static_cast<int>(center - radius + 0.5), 0);
    end = std::min(static_cast<int>(center + radius + 0.5), axis.size);
  }
  double weight(int at) const noexcept { return std::max(1.0 - std::abs(at + 0.5 - center) * sharpness, 0.0); }
};

void check(const ResizeAxis& axis) noexcept {
  HEADRACE_CHECK(axis.begin >= 0 && axis.size >= 1 && axis.resized >= 1 && axis.out_begin >= 0 && axis.out_size >= 1 &&
                     axis.out_size <= axis.resized - axis.out_begin,
                 "image: {} + {} pixels resized to {}, of which {} + {} are wanted", axis.begin, axis.size,
                 axis.resized, axis.out_begin, axis.out_size);
}

// Weights of the wanted outputs of one axis, normalised. Kept until another axis is asked for.
class Taps {
 public:
  void make(const ResizeAxis& axis) {
    if (axis == axis_) return;
    axis_ = {};  // Nothing, should an allocation fail.
    const int origin = needed(axis).begin - axis.begin;
    const auto outputs = static_cast<std::size_t>(axis.out_size);
    begins_.resize(outputs);
    counts_.resize(outputs);
    most_ = 1;
    for (int j = 0; j < axis.out_size; ++j) {
      const Reach reach{axis, axis.out_begin + j};
      int begin = reach.begin, end = reach.end;
      while (end - begin > 1 && reach.weight(end - 1) == 0) --end;
      while (end - begin > 1 && reach.weight(begin) == 0) ++begin;
      begins_[static_cast<std::size_t>(j)] = begin - origin;
      counts_[static_cast<std::size_t>(j)] = end - begin;
      most_ = std::max(most_, end - begin);
    }
    weights_.assign(outputs * static_cast<std::size_t>(most_), 0.0F);
    for (int j = 0; j < axis.out_size; ++j) {
      const Reach reach{axis, axis.out_begin + j};
      const int begin = this->begin(j) + origin;
      double sum = 0;
      for (int k = 0; k < count(j); ++k) sum += reach.weight(begin + k);
      float* weights = weights_.data() + static_cast<std::ptrdiff_t>(j) * most_;
      for (int k = 0; k < count(j); ++k) weights[k] = static_cast<float>(reach.weight(begin + k) / sum);
    }
    axis_ = axis;
  }

  int begin(int out) const noexcept { return begins_[static_cast<std::size_t>(out)]; }  // Of what is needed().
  int count(int out) const noexcept { return counts_[static_cast<std::size_t>(out)]; }
  const float* weights(int out) const noexcept { return weights_.data() + static_cast<std::ptrdiff_t>(out) * most_; }
  int most() const noexcept { return most_; }
  resize_passes::Columns columns(int channels) const noexcept {
    return {begins_.data(), weights_.data(), axis_.out_size, most_, channels};
  }

 private:
  ResizeAxis axis_;
  int most_ = 0;
  std::vector<int> begins_;
  std::vector<int> counts_;
  std::vector<float> weights_;  // outputs x most_.
};

void grow(std::vector<float>& scratch, std::ptrdiff_t size) {
  if (std::ssize(scratch) < size) scratch.resize(static_cast<std::size_t>(size));
}

}  // namespace

Stretch needed(const ResizeAxis& axis) noexcept {
  check(axis);
  const int begin = Reach(axis, axis.out_begin).begin;
  return {axis.begin + begin, Reach(axis, axis.out_begin + axis.out_size - 1).end - begin};
}

struct Resizer::Impl {
  Taps vertical, horizontal;
  std::vector<float> rows;   // kRows times the needed columns of an output row.
  std::vector<float> lines;  // kRows output rows.
};

Resizer::Resizer() : impl_(std::make_unique<Impl>()) {}
Resizer::~Resizer() = default;
Resizer::Resizer(Resizer&&) noexcept = default;
Resizer& Resizer::operator=(Resizer&&) noexcept = default;

void Resizer::resize(std::span<const std::uint8_t> pixels, const ResizeAxis& vertical, const ResizeAxis& horizontal,
                     int channels, std::span<std::uint8_t> out) {
  const Stretch rows = needed(vertical), columns = needed(horizontal);
  HEADRACE_CHECK(channels >= 1 && channels <= 4, "image: pictures of {} channels", channels);
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(columns.size) * channels;
  const std::ptrdiff_t out_stride = static_cast<std::ptrdiff_t>(horizontal.out_size) * channels;
  HEADRACE_CHECK(std::ssize(pixels) == stride * rows.size && std::ssize(out) == out_stride * vertical.out_size,
                 "image: {} bytes resized to {}; wanted {} to {}", pixels.size(), out.size(), stride * rows.size,
                 out_stride * vertical.out_size);

  if (vertical.size == vertical.resized && horizontal.size == horizontal.resized) {
    for (int y = 0; y < vertical.out_size; ++y) {
      std::memcpy(out.data() + y * out_stride, pixels.data() + y * stride, static_cast<std::size_t>(out_stride));
    }
    return;
  }
  Impl& self = *impl_;
  self.vertical.make(vertical);
  self.horizontal.make(horizontal);
  // Taps of weight 0 read past the last pixel of a row, up to `most` pixels: of zeros, or of an earlier, wider row.
  const std::ptrdiff_t row = stride + self.horizontal.most() * channels + resize_passes::kPadding;
  const std::ptrdiff_t line = out_stride + resize_passes::kPadding;
  grow(self.rows, row * resize_passes::kRows);
  grow(self.lines, line * resize_passes::kRows);

  const resize_passes::Kernels& kernels = resize_passes::kernels();
  for (int y = 0; y < vertical.out_size; y += resize_passes::kRows) {
    const int count = std::min(resize_passes::kRows, vertical.out_size - y);
    for (int r = 0; r < count; ++r) {
      kernels.blend_rows(pixels.data() + self.vertical.begin(y + r) * stride, stride, self.vertical.weights(y + r),
                         self.vertical.count(y + r), stride, self.rows.data() + r * row);
    }
    kernels.blend_columns({self.rows.data(), row}, self.horizontal.columns(channels), {self.lines.data(), line});
    for (int r = 0; r < count; ++r) {
      kernels.round(self.lines.data() + r * line, out_stride, out.data() + (y + r) * out_stride);
    }
  }
}

}  // namespace headrace::image
