// The four passes of norm_relu_pool.h over one part of an image tensor, once per instruction set.
//
// Kernels allocate nothing and start no thread. Those of the plain set are the specification; the others do the same on
// vectors of channels (NHWC) or of columns (NCHW). Sums are taken in float over runs of at most 64 values a lane and in
// double above.
#pragma once

#include <cstdint>

namespace headrace::norm_relu_pool_passes {

// Arrays with a value a channel, and each half of `sums`, have room for channels rounded up to this.
constexpr std::int64_t kPadding = 16;

struct Geometry {
  std::int64_t samples, channels, height, width;
  bool channels_last;  // NHWC, else NCHW; dense.
  bool pool;           // 2x2, stride 2; an odd last row or column belongs to no window.

  std::int64_t padded_channels() const noexcept { return (channels + kPadding - 1) / kPadding * kPadding; }
  std::int64_t window() const noexcept { return pool ? 2 : 1; }
  std::int64_t output_height() const noexcept { return height / window(); }
  std::int64_t output_width() const noexcept { return width / window(); }
  // A unit is what a window never crosses: of NHWC one or two rows of a sample, of NCHW one plane.
  std::int64_t row_groups() const noexcept { return (height + window() - 1) / window(); }
  std::int64_t units() const noexcept { return samples * (channels_last ? row_groups() : channels); }
};

struct Units {
  std::int64_t begin, end;
};

// z = (x - center) * scale + offset. Subtracting first keeps z exact where the mean is far larger than the deviation.
struct Affine {
  const float* center;
  const float* scale;
  const float* offset;
};

// dx = scale * dz + constant - slope * (x - center). Without the statistics (evaluation) constant and slope are not
// looked at, so that an infinite x has a finite gradient.
struct InputGradient {
  const float* constant;
  const float* slope;
  bool through_statistics;
};

// Element: float, or std::uint16_t for the bits of a bfloat16. `sums` are two arrays of padded_channels() doubles.
template <class Element>
struct Kernels {
  // Adds sum(x - shift) and sum((x - shift)^2). Exact enough for any shift that is itself an x of the channel; squares
  // overflow where x - x' exceeds 1e19.
  void (*add_moments)(const Geometry&, const Element* x, const float* shift, Units, double* sums) noexcept;
  // y = max(z, 0), the largest of each window. NaN wins, as in PyTorch.
  void (*forward)(const Geometry&, const Element* x, const Affine&, Units, Element* y) noexcept;
  // dz is dy at the first largest z of its window where that is above 0, else 0: adds sum(dz), sum(dz * (x - center)).
  void (*add_gradient_sums)(const Geometry&, const Element* x, const Element* dy, const Affine&, Units,
                            double* sums) noexcept;
  void (*input_gradient)(const Geometry&, const Element* x, const Element* dy, const Affine&, const InputGradient&,
                         Units, Element* dx) noexcept;
};

// Of the best instruction set that this machine has.
const Kernels<float>& kernels(float) noexcept;
const Kernels<std::uint16_t>& kernels(std::uint16_t) noexcept;

}  // namespace headrace::norm_relu_pool_passes
