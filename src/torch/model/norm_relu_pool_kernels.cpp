#include "torch/model/norm_relu_pool_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "torch/model/norm_relu_pool_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::norm_relu_pool_passes {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain: the specification ----

float value(float x) {
  return x;
}

float value(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

void assign(float& target, float x) {
  target = x;
}

void assign(std::uint16_t& target, float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  target = static_cast<std::uint16_t>(std::isnan(x) ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The samples, channels and rows that a unit covers.
struct Box {
  std::int64_t sample, channel_begin, channel_end, row_begin, row_end;

  Box(const Geometry& g, std::int64_t unit) {
    const std::int64_t per_sample = g.channels_last ? g.row_groups() : g.channels;
    const std::int64_t rest = unit % per_sample;
    sample = unit / per_sample;
    channel_begin = g.channels_last ? 0 : rest;
    channel_end = g.channels_last ? g.channels : rest + 1;
    row_begin = g.channels_last ? rest * g.window() : 0;
    row_end = g.channels_last ? std::min(row_begin + g.window(), g.height) : g.height;
  }
};

std::int64_t offset(const Geometry& g, std::int64_t height, std::int64_t width, std::int64_t sample,
                    std::int64_t channel, std::int64_t row, std::int64_t column) {
  if (g.channels_last) return ((sample * height + row) * width + column) * g.channels + channel;
  return ((sample * g.channels + channel) * height + row) * width + column;
}

struct Winner {
  float z;
  std::int64_t offset;  // Of x.
};

template <class Element>
Winner winner(const Geometry& g, const Element* x, const Affine& affine, std::int64_t sample, std::int64_t channel,
              std::int64_t row, std::int64_t column) {
  Winner best{0, -1};
  for (std::int64_t i = row * g.window(); i < (row + 1) * g.window(); ++i) {
    for (std::int64_t j = column * g.window(); j < (column + 1) * g.window(); ++j) {
      const std::int64_t at = offset(g, g.height, g.width, sample, channel, i, j);
      const float z = (value(x[at]) - affine.center[channel]) * affine.scale[channel] + affine.offset[channel];
      if (best.offset < 0 || z > best.z || std::isnan(z)) best = {z, at};
    }
  }
  return best;
}

template <class Element>
void add_moments(const Geometry& g, const Element* x, const float* shift, Units units, double* sums) noexcept {
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const Box box{g, unit};
    for (std::int64_t c = box.channel_begin; c < box.channel_end; ++c) {
      for (std::int64_t i = box.row_begin; i < box.row_end; ++i) {
        for (std::int64_t j = 0; j < g.width; ++j) {
          const double difference = double{value(x[offset(g, g.height, g.width, box.sample, c, i, j)])} - shift[c];
          sums[c] += difference;
          sums[g.padded_channels() + c] += difference * difference;
        }
      }
    }
  }
}

template <class Element>
void forward(const Geometry& g, const Element* x, const Affine& affine, Units units, Element* y) noexcept {
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const Box box{g, unit};
    for (std::int64_t c = box.channel_begin; c < box.channel_end; ++c) {
      for (std::int64_t i = box.row_begin / g.window(); i < box.row_end / g.window(); ++i) {
        for (std::int64_t j = 0; j < g.output_width(); ++j) {
          const float z = winner(g, x, affine, box.sample, c, i, j).z;
          assign(y[offset(g, g.output_height(), g.output_width(), box.sample, c, i, j)], z <= 0 ? 0 : z);
        }
      }
    }
  }
}

template <class Element>
void add_gradient_sums(const Geometry& g, const Element* x, const Element* dy, const Affine& affine, Units units,
                       double* sums) noexcept {
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const Box box{g, unit};
    for (std::int64_t c = box.channel_begin; c < box.channel_end; ++c) {
      for (std::int64_t i = box.row_begin / g.window(); i < box.row_end / g.window(); ++i) {
        for (std::int64_t j = 0; j < g.output_width(); ++j) {
          const Winner best = winner(g, x, affine, box.sample, c, i, j);
          if (best.z <= 0) continue;
          const double dz = value(dy[offset(g, g.output_height(), g.output_width(), box.sample, c, i, j)]);
          sums[c] += dz;
          sums[g.padded_channels() + c] += dz * (double{value(x[best.offset])} - affine.center[c]);
        }
      }
    }
  }
}

template <class Element>
void input_gradient(const Geometry& g, const Element* x, const Element* dy, const Affine& affine,
                    const InputGradient& gradient, Units units, Element* dx) noexcept {
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const Box box{g, unit};
    for (std::int64_t c = box.channel_begin; c < box.channel_end; ++c) {
      for (std::int64_t i = box.row_begin; i < box.row_end; ++i) {
        for (std::int64_t j = 0; j < g.width; ++j) {
          const std::int64_t at = offset(g, g.height, g.width, box.sample, c, i, j);
          const std::int64_t row = i / g.window(), column = j / g.window();
          float dz = 0;
          if (row < g.output_height() && column < g.output_width()) {
            const Winner best = winner(g, x, affine, box.sample, c, row, column);
            if (best.offset == at && !(best.z <= 0)) {
              dz = value(dy[offset(g, g.output_height(), g.output_width(), box.sample, c, row, column)]);
            }
          }
          const float rest = gradient.through_statistics
                                 ? gradient.constant[c] - gradient.slope[c] * (value(x[at]) - affine.center[c])
                                 : 0;
          assign(dx[at], affine.scale[c] * dz + rest);
        }
      }
    }
  }
}

#else  // ---- vectors ----

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
using M = hn::Mask<F>;
constexpr F f;
constexpr std::int64_t kLanes = HWY_LANES(float);
constexpr std::int64_t kRun = 64;  // Values a lane that are summed in float.
static_assert(kPadding % kLanes == 0);

// ---- memory ----

HWY_INLINE V from_bits(hn::Vec<hn::Rebind<std::uint16_t, F> > bits) {
  return hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<F>{}, bits)));
}

HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, F> > to_bits(V v) {  // To nearest, ties to even; NaN stays NaN.
  const hn::RebindToUnsigned<F> u;
  const auto bits = hn::BitCast(u, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFF))));
  const auto kept = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(v)), hn::Set(u, 0x7FC0), rounded);
  return hn::DemoteTo(hn::Rebind<std::uint16_t, F>{}, hn::BitCast(hn::RebindToSigned<F>{}, kept));
}

HWY_INLINE V load(const float* from) {
  return hn::LoadU(f, from);
}

HWY_INLINE V load(const std::uint16_t* from) {
  return from_bits(hn::LoadU(hn::Rebind<std::uint16_t, F>{}, from));
}

HWY_INLINE void store(V v, float* to) {
  hn::StoreU(v, f, to);
}

HWY_INLINE void store(V v, std::uint16_t* to) {
  hn::StoreU(to_bits(v), hn::Rebind<std::uint16_t, F>{}, to);
}

// Reads only the first `count` lanes, 0 in the others. Below AVX-512 masks do not keep a 16-bit load off the next page,
// nor below AVX2 any load.
template <class Element>
HWY_INLINE V load_first(const Element* from, std::int64_t count) {
  if (count >= kLanes) return load(from);
  const hn::Rebind<Element, F> tag;
  if constexpr (HWY_CAP_GE512 || (HWY_CAP_GE256 && sizeof(Element) == 4)) {
    const auto lanes = hn::MaskedLoad(hn::FirstN(tag, static_cast<std::size_t>(count)), tag, from);
    if constexpr (sizeof(Element) == 4) {
      return lanes;
    } else {
      return from_bits(lanes);
    }
  } else {
    HWY_ALIGN Element lanes[kLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
  }
}

// Writes only the first `count` lanes.
template <class Element>
HWY_INLINE void store_first(V v, Element* to, std::int64_t count) {
  if (count >= kLanes) return store(v, to);
  const hn::Rebind<Element, F> tag;
  if constexpr (HWY_CAP_GE512 || (HWY_CAP_GE256 && sizeof(Element) == 4)) {
    const auto first = hn::FirstN(tag, static_cast<std::size_t>(count));
    if constexpr (sizeof(Element) == 4) {
      hn::BlendedStore(v, first, tag, to);
    } else {
      hn::BlendedStore(to_bits(v), first, tag, to);
    }
  } else {
    HWY_ALIGN Element lanes[kLanes];
    store(v, lanes);
    for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
}

// ---- sums ----

using D = hn::Repartition<double, F>;
constexpr D d;
constexpr std::int64_t kHalf = kLanes / 2;

HWY_INLINE hn::Vec<D> lower(V v) {
  return hn::PromoteTo(d, hn::LowerHalf(v));
}

HWY_INLINE hn::Vec<D> upper(V v) {
  return hn::PromoteTo(d, hn::UpperHalf(hn::Half<F>{}, v));
}

HWY_INLINE void add_to(double* sums, V v) {
  hn::StoreU(hn::Add(hn::LoadU(d, sums), lower(v)), d, sums);
  hn::StoreU(hn::Add(hn::LoadU(d, sums + kHalf), upper(v)), d, sums + kHalf);
}

HWY_INLINE double sum_of_lanes(V v) {
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(lower(v), upper(v))));
}

// Sums about the run's own first value, which cancel however far the mean is from 0: the deviation of the run is at
// least a fixed part of the distance to any value in it.
struct Moments {
  V first, sum = hn::Zero(f), square = hn::Zero(f);

  HWY_INLINE explicit Moments(V first_value) : first(first_value) {}

  HWY_INLINE void add(V x) { add_difference(hn::Sub(x, first)); }
  HWY_INLINE void add_difference(V difference) {
    sum = hn::Add(sum, difference);
    square = hn::MulAdd(difference, difference, square);
  }

  // Moved from the first value to `shift`, a lane a channel.
  HWY_INLINE void flush(V shift, std::int64_t count, double* sums, double* squares) const {
    flush_half(hn::Sub(lower(first), lower(shift)), lower(sum), lower(square), count, sums, squares);
    flush_half(hn::Sub(upper(first), upper(shift)), upper(sum), upper(square), count, sums + kHalf, squares + kHalf);
  }

  static HWY_INLINE void flush_half(hn::Vec<D> move, hn::Vec<D> s, hn::Vec<D> q, std::int64_t count, double* sums,
                                    double* squares) {
    const auto moved = hn::Mul(hn::Set(d, static_cast<double>(count)), move);
    hn::StoreU(hn::Add(hn::LoadU(d, sums), hn::Add(s, moved)), d, sums);
    const auto cross = hn::Mul(move, hn::Add(hn::Add(s, s), moved));
    hn::StoreU(hn::Add(hn::LoadU(d, squares), hn::Add(q, cross)), d, squares);
  }
};

// Pixels lie `channels` apart; each lane is a channel. Absent channels of a last vector are 0 throughout.
template <class Element>
void add_channel_moments(const Element* x, std::int64_t pixels, std::int64_t channels, const float* shift, double* sums,
                         double* squares) {
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= channels; c += 2 * kLanes) {  // Two at once hide the latency of the additions.
    Moments left{load(x + c)}, right{load(x + c + kLanes)};
    for (std::int64_t i = 1; i < pixels; ++i) {
      left.add(load(x + i * channels + c));
      right.add(load(x + i * channels + c + kLanes));
    }
    left.flush(hn::LoadU(f, shift + c), pixels, sums + c, squares + c);
    right.flush(hn::LoadU(f, shift + c + kLanes), pixels, sums + c + kLanes, squares + c + kLanes);
  }
  for (; c < channels; c += kLanes) {
    Moments moments{load_first(x + c, channels - c)};
    for (std::int64_t i = 1; i < pixels; ++i) moments.add(load_first(x + i * channels + c, channels - c));
    moments.flush(hn::LoadU(f, shift + c), pixels, sums + c, squares + c);
  }
}

// At most kRun * kLanes values of one channel.
template <class Element>
void add_plane_moments(const Element* x, std::int64_t size, double shift, double* sum, double* square) {
  Moments even{hn::Set(f, hn::GetLane(load_first(x, 1)))};
  Moments odd = even;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    even.add(load(x + i));
    odd.add(load(x + i + kLanes));
  }
  for (; i < size; i += kLanes) {
    const std::int64_t count = std::min(size - i, kLanes);
    const V difference = hn::Sub(load_first(x + i, count), even.first);
    even.add_difference(hn::IfThenElseZero(hn::FirstN(f, static_cast<std::size_t>(count)), difference));
  }
  const double s = sum_of_lanes(even.sum) + sum_of_lanes(odd.sum);
  const double q = sum_of_lanes(even.square) + sum_of_lanes(odd.square);
  const double move = double{hn::GetLane(even.first)} - shift;
  const double moved = static_cast<double>(size) * move;
  *sum += s + moved;
  *square += q + move * (s + s + moved);
}

template <class Element>
void add_moments(const Geometry& g, const Element* x, const float* shift, Units units, double* sums) noexcept {
  double* squares = sums + g.padded_channels();
  if (g.channels_last) {
    const auto row_of = [&g](std::int64_t unit) {
      return unit / g.row_groups() * g.height + unit % g.row_groups() * g.window();
    };
    const std::int64_t end = row_of(units.end) * g.width;
    for (std::int64_t i = row_of(units.begin) * g.width; i < end; i += kRun) {
      add_channel_moments(x + i * g.channels, std::min(end - i, kRun), g.channels, shift, sums, squares);
    }
    return;
  }
  const std::int64_t plane = g.height * g.width;
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    const std::int64_t c = unit % g.channels;
    for (std::int64_t i = 0; i < plane; i += kRun * kLanes) {
      add_plane_moments(x + unit * plane + i, std::min(plane - i, kRun * kLanes), shift[c], sums + c, squares + c);
    }
  }
}

// ---- one window ----

// Whether PyTorch's scan prefers the later value: larger, or NaN.
HWY_INLINE M prefers(V later, V earlier) {
  return hn::Or(hn::Gt(later, earlier), hn::IsNaN(later));
}

HWY_INLINE V clamp(V z) {
  return hn::IfThenZeroElse(hn::Le(z, hn::Zero(f)), z);  // Keeps NaN.
}

HWY_INLINE V passed(V z, V dy) {
  return hn::IfThenZeroElse(hn::Le(z, hn::Zero(f)), dy);
}

struct Channel {
  V center, scale, offset;

  static HWY_INLINE Channel lanes(const Affine& a, std::int64_t c) {
    return {hn::LoadU(f, a.center + c), hn::LoadU(f, a.scale + c), hn::LoadU(f, a.offset + c)};
  }
  static HWY_INLINE Channel all(const Affine& a, std::int64_t c) {
    return {hn::Set(f, a.center[c]), hn::Set(f, a.scale[c]), hn::Set(f, a.offset[c])};
  }
  HWY_INLINE V difference(V x) const { return hn::Sub(x, center); }
  HWY_INLINE V normal(V x) const { return hn::MulAdd(difference(x), scale, offset); }
};

// scale * dz + constant - slope * difference. In evaluation only scale * dz, by lanes that hide the rest.
struct Chain {
  V scale, constant, slope;
  V statistics;  // All bits or none.

  static HWY_INLINE V bits(bool set) {
    return hn::BitCast(f, hn::Set(hn::RebindToUnsigned<F>{}, set ? 0xFFFFFFFFU : 0U));
  }
  static HWY_INLINE Chain lanes(const Affine& a, const InputGradient& g, std::int64_t c) {
    return {hn::LoadU(f, a.scale + c), hn::LoadU(f, g.constant + c), hn::LoadU(f, g.slope + c),
            bits(g.through_statistics)};
  }
  static HWY_INLINE Chain all(const Affine& a, const InputGradient& g, std::int64_t c) {
    return {hn::Set(f, a.scale[c]), hn::Set(f, g.constant[c]), hn::Set(f, g.slope[c]), bits(g.through_statistics)};
  }
  HWY_INLINE V operator()(V dz, V difference) const {
    const V rest = hn::And(statistics, hn::NegMulAdd(slope, difference, constant));
    return hn::MulAdd(scale, dz, rest);
  }
};

// ---- NHWC: a lane is a channel ----

// The four values of a window as differences from the center, the largest z and where it stands.
struct Window {
  V top_left, top_right, bottom_left, bottom_right;  // x - center.
  M right_above, right_below, below;                 // The first largest.
  V z;

  template <class Element>
  HWY_INLINE Window(const Channel& channel, const Element* top, const Element* bottom, std::int64_t channels,
                    std::int64_t count)
      : top_left(channel.difference(load_first(top, count))),
        top_right(channel.difference(load_first(top + channels, count))),
        bottom_left(channel.difference(load_first(bottom, count))),
        bottom_right(channel.difference(load_first(bottom + channels, count))) {
    const V z_top_left = hn::MulAdd(top_left, channel.scale, channel.offset);
    const V z_top_right = hn::MulAdd(top_right, channel.scale, channel.offset);
    const V z_bottom_left = hn::MulAdd(bottom_left, channel.scale, channel.offset);
    const V z_bottom_right = hn::MulAdd(bottom_right, channel.scale, channel.offset);
    right_above = prefers(z_top_right, z_top_left);
    right_below = prefers(z_bottom_right, z_bottom_left);
    const V above = hn::IfThenElse(right_above, z_top_right, z_top_left);
    const V under = hn::IfThenElse(right_below, z_bottom_right, z_bottom_left);
    below = prefers(under, above);
    z = hn::IfThenElse(below, under, above);
  }

  HWY_INLINE V winner() const {
    return hn::IfThenElse(below, hn::IfThenElse(right_below, bottom_right, bottom_left),
                          hn::IfThenElse(right_above, top_right, top_left));
  }
};

// Where a unit of NHWC lies.
template <class Element>
struct Rows {
  const Element* x;
  std::int64_t output;  // Offset of its row of the output, or -1: an odd last row.
  std::int64_t channels;
  std::int64_t columns;  // Of the output.
  std::int64_t stride;   // Between its two rows.

  HWY_INLINE Rows(const Geometry& g, const Element* all, std::int64_t unit)
      : channels(g.channels), columns(g.output_width()), stride(g.width * g.channels) {
    const std::int64_t sample = unit / g.row_groups(), group = unit % g.row_groups();
    x = all + (sample * g.height + group * g.window()) * stride;
    output = group < g.output_height() ? (sample * g.output_height() + group) * columns * channels : -1;
  }
};

template <class Element>
void forward_rows(const Geometry& g, const Rows<Element>& rows, const Affine& affine, Element* y) {
  for (std::int64_t column = 0; column < rows.columns; ++column) {
    const Element* from = rows.x + column * g.window() * rows.channels;
    Element* to = y + rows.output + column * rows.channels;
    for (std::int64_t c = 0; c < rows.channels; c += kLanes) {
      const Channel channel = Channel::lanes(affine, c);
      const std::int64_t count = rows.channels - c;
      const V z = g.pool ? Window(channel, from + c, from + rows.stride + c, rows.channels, count).z
                         : channel.normal(load_first(from + c, count));
      store_first(clamp(z), to + c, count);
    }
  }
}

template <class Element>
void add_row_gradient_sums(const Geometry& g, const Rows<Element>& rows, const Element* dy, const Affine& affine,
                           double* sums) {
  for (std::int64_t begin = 0; begin < rows.columns; begin += kRun) {
    const std::int64_t end = std::min(begin + kRun, rows.columns);
    for (std::int64_t c = 0; c < rows.channels; c += kLanes) {
      const Channel channel = Channel::lanes(affine, c);
      const std::int64_t count = rows.channels - c;
      V sum = hn::Zero(f), product = hn::Zero(f);
      for (std::int64_t column = begin; column < end; ++column) {
        const Element* from = rows.x + column * g.window() * rows.channels + c;
        const V gradient = load_first(dy + rows.output + column * rows.channels + c, count);
        V dz, difference;
        if (g.pool) {
          const Window window{channel, from, from + rows.stride, rows.channels, count};
          dz = passed(window.z, gradient);
          difference = window.winner();
        } else {
          difference = channel.difference(load_first(from, count));
          dz = passed(hn::MulAdd(difference, channel.scale, channel.offset), gradient);
        }
        sum = hn::Add(sum, dz);
        product = hn::MulAdd(dz, difference, product);
      }
      add_to(sums + c, sum);
      add_to(sums + g.padded_channels() + c, product);
    }
  }
}

template <class Element>
void window_gradient(const Rows<Element>& rows, const Element* dy, const Affine& affine, const InputGradient& gradient,
                     std::int64_t column, Element* dx) {
  const Element* from = rows.x + 2 * column * rows.channels;
  Element* to = dx + 2 * column * rows.channels;
  for (std::int64_t c = 0; c < rows.channels; c += kLanes) {
    const Chain chain = Chain::lanes(affine, gradient, c);
    const std::int64_t count = rows.channels - c;
    const Window window{Channel::lanes(affine, c), from + c, from + rows.stride + c, rows.channels, count};
    const V dz = passed(window.z, load_first(dy + rows.output + column * rows.channels + c, count));
    const V above = hn::IfThenZeroElse(window.below, dz), under = hn::IfThenElseZero(window.below, dz);
    Element* top = to + c;
    Element* bottom = top + rows.stride;
    store_first(chain(hn::IfThenZeroElse(window.right_above, above), window.top_left), top, count);
    store_first(chain(hn::IfThenElseZero(window.right_above, above), window.top_right), top + rows.channels, count);
    store_first(chain(hn::IfThenZeroElse(window.right_below, under), window.bottom_left), bottom, count);
    store_first(chain(hn::IfThenElseZero(window.right_below, under), window.bottom_right), bottom + rows.channels,
                count);
  }
}

// Pixels that no window holds (dy null), or, without pooling, each with its own dy.
template <class Element>
void pixel_gradient(const Element* x, const Element* dy, std::int64_t pixels, std::int64_t channels,
                    const Affine& affine, const InputGradient& gradient, Element* dx) {
  for (std::int64_t i = 0; i < pixels; ++i) {
    for (std::int64_t c = 0; c < channels; c += kLanes) {
      const Channel channel = Channel::lanes(affine, c);
      const std::int64_t at = i * channels + c, count = channels - c;
      const V difference = channel.difference(load_first(x + at, count));
      const V z = hn::MulAdd(difference, channel.scale, channel.offset);
      const V dz = dy == nullptr ? hn::Zero(f) : passed(z, load_first(dy + at, count));
      store_first(Chain::lanes(affine, gradient, c)(dz, difference), dx + at, count);
    }
  }
}

template <class Element>
void row_gradient(const Geometry& g, const Rows<Element>& rows, const Element* dy, const Affine& affine,
                  const InputGradient& gradient, Element* dx) {
  const Element* none = nullptr;
  if (!g.pool) return pixel_gradient(rows.x, dy + rows.output, g.width, g.channels, affine, gradient, dx);
  if (rows.output < 0) return pixel_gradient(rows.x, none, g.width, g.channels, affine, gradient, dx);
  for (std::int64_t column = 0; column < rows.columns; ++column) {
    window_gradient(rows, dy, affine, gradient, column, dx);
  }
  if (g.width % 2 == 0) return;
  for (const std::int64_t at : {(g.width - 1) * g.channels, (g.width - 1) * g.channels + rows.stride}) {
    pixel_gradient(rows.x + at, none, 1, g.channels, affine, gradient, dx + at);
  }
}

// ---- NCHW: a lane is a column, and two neighbouring lanes share a window ----

struct Pairs {
  M odd;
  hn::Vec<hn::RebindToSigned<F> > halves, doubles;  // Lane i takes lane i / 2, or 2 i where that is a lane.

  HWY_INLINE Pairs() {
    const hn::RebindToSigned<F> i;
    const auto lane = hn::Iota(i, 0);
    odd = hn::RebindMask(f, hn::Ne(hn::And(lane, hn::Set(i, 1)), hn::Zero(i)));
    halves = hn::ShiftRight<1>(lane);
    doubles = hn::And(hn::ShiftLeft<1>(lane), hn::Set(i, static_cast<std::int32_t>(kLanes - 1)));
  }
  HWY_INLINE V spread(V v) const { return hn::TableLookupLanes(v, hn::IndicesFromVec(f, halves)); }
  HWY_INLINE V gathered(V v) const { return hn::TableLookupLanes(v, hn::IndicesFromVec(f, doubles)); }
};

// One row of windows: z of the larger of two neighbours, in both lanes, and whether this lane holds it.
struct RowPair {
  V difference, z;
  M holds;

  HWY_INLINE RowPair(const Channel& channel, V x, const Pairs& pairs) : difference(channel.difference(x)) {
    const V own = hn::MulAdd(difference, channel.scale, channel.offset);
    const V other = hn::Shuffle2301(own);
    const M later_holds = hn::And(pairs.odd, prefers(own, other));
    const M earlier_holds = hn::Not(hn::Or(pairs.odd, prefers(other, own)));
    holds = hn::Or(later_holds, earlier_holds);
    z = hn::IfThenElse(holds, own, other);
  }
};

// dz of the lanes of two rows, from a run of dy.
struct PairGradient {
  RowPair top, bottom;
  V above, under;

  template <class Element>
  HWY_INLINE PairGradient(const Channel& channel, const Element* x, std::int64_t width, std::int64_t count,
                          const Element* dy, std::int64_t windows, const Pairs& pairs)
      : top(channel, load_first(x, count), pairs), bottom(channel, load_first(x + width, count), pairs) {
    const M below = prefers(bottom.z, top.z);
    const V gradient = windows > 0 ? pairs.spread(load_first(dy, std::min(windows, kHalf))) : hn::Zero(f);
    const V dz = passed(hn::IfThenElse(below, bottom.z, top.z), gradient);
    above = hn::IfThenElseZero(hn::AndNot(below, top.holds), dz);
    under = hn::IfThenElseZero(hn::And(below, bottom.holds), dz);
  }
};

template <class Element>
void forward_plane(const Geometry& g, const Element* x, const Channel& channel, Element* y) {
  if (!g.pool) {
    const std::int64_t size = g.height * g.width;
    for (std::int64_t i = 0; i < size; i += kLanes) {
      store_first(clamp(channel.normal(load_first(x + i, size - i))), y + i, size - i);
    }
    return;
  }
  const Pairs pairs;
  const std::int64_t columns = g.output_width();
  for (std::int64_t row = 0; row < g.output_height(); ++row) {
    const Element* from = x + 2 * row * g.width;
    for (std::int64_t column = 0; column < columns; column += kHalf) {
      const std::int64_t count = g.width - 2 * column;
      const RowPair top{channel, load_first(from + 2 * column, count), pairs};
      const RowPair bottom{channel, load_first(from + g.width + 2 * column, count), pairs};
      const V z = hn::IfThenElse(prefers(bottom.z, top.z), bottom.z, top.z);
      store_first(pairs.gathered(clamp(z)), y + row * columns + column, std::min(columns - column, kHalf));
    }
  }
}

template <class Element>
void forward(const Geometry& g, const Element* x, const Affine& affine, Units units, Element* y) noexcept {
  const std::int64_t plane = g.height * g.width, output_plane = g.output_height() * g.output_width();
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    if (g.channels_last) {
      const Rows<Element> rows{g, x, unit};
      if (rows.output >= 0) forward_rows(g, rows, affine, y);
    } else {
      forward_plane(g, x + unit * plane, Channel::all(affine, unit % g.channels), y + unit * output_plane);
    }
  }
}

// Float sums of one plane, taken to double after every kRun additions.
struct PlaneSums {
  V sum = hn::Zero(f), product = hn::Zero(f);
  std::int64_t additions = 0;
  double total = 0, total_product = 0;

  HWY_INLINE PlaneSums() {}  // Written out: an implicit one is not compiled for this instruction set.
  HWY_INLINE void add(V dz, V difference) {
    sum = hn::Add(sum, dz);
    product = hn::MulAdd(dz, difference, product);
    if (++additions >= kRun) flush();
  }
  HWY_INLINE void flush() {
    total += sum_of_lanes(sum);
    total_product += sum_of_lanes(product);
    sum = product = hn::Zero(f);
    additions = 0;
  }
};

template <class Element>
PlaneSums plane_gradient_sums(const Geometry& g, const Element* x, const Element* dy, const Channel& channel) {
  PlaneSums sums;
  if (!g.pool) {
    const std::int64_t size = g.height * g.width;
    for (std::int64_t i = 0; i < size; i += kLanes) {
      const V difference = channel.difference(load_first(x + i, size - i));
      const V z = hn::MulAdd(difference, channel.scale, channel.offset);
      // Absent lanes have the difference of an x of 0, which their dz of 0 does not cancel where it is infinite.
      const V kept =
          hn::IfThenElseZero(hn::FirstN(f, static_cast<std::size_t>(std::min(size - i, kLanes))), difference);
      sums.add(passed(z, load_first(dy + i, size - i)), kept);
    }
  } else {
    const Pairs pairs;
    const std::int64_t columns = g.output_width();
    for (std::int64_t row = 0; row < g.output_height(); ++row) {
      for (std::int64_t column = 0; column < columns; column += kHalf) {
        const PairGradient pair{channel,
                                x + 2 * row * g.width + 2 * column,
                                g.width,
                                g.width - 2 * column,
                                dy + row * columns + column,
                                columns - column,
                                pairs};
        const M above = hn::Ne(pair.above, hn::Zero(f)), under = hn::Ne(pair.under, hn::Zero(f));
        sums.add(pair.above, hn::IfThenElseZero(above, pair.top.difference));
        sums.add(pair.under, hn::IfThenElseZero(under, pair.bottom.difference));
      }
    }
  }
  sums.flush();
  return sums;
}

template <class Element>
void add_gradient_sums(const Geometry& g, const Element* x, const Element* dy, const Affine& affine, Units units,
                       double* sums) noexcept {
  const std::int64_t plane = g.height * g.width, output_plane = g.output_height() * g.output_width();
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    if (g.channels_last) {
      const Rows<Element> rows{g, x, unit};
      if (rows.output >= 0) add_row_gradient_sums(g, rows, dy, affine, sums);
    } else {
      const std::int64_t c = unit % g.channels;
      const PlaneSums of_plane =
          plane_gradient_sums(g, x + unit * plane, dy + unit * output_plane, Channel::all(affine, c));
      sums[c] += of_plane.total;
      sums[g.padded_channels() + c] += of_plane.total_product;
    }
  }
}

template <class Element>
void gradient_of_run(const Element* x, const Element* dy, std::int64_t size, const Channel& channel, const Chain& chain,
                     Element* dx) {
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const V difference = channel.difference(load_first(x + i, size - i));
    const V z = hn::MulAdd(difference, channel.scale, channel.offset);
    const V dz = dy == nullptr ? hn::Zero(f) : passed(z, load_first(dy + i, size - i));
    store_first(chain(dz, difference), dx + i, size - i);
  }
}

template <class Element>
void plane_gradient(const Geometry& g, const Element* x, const Element* dy, const Channel& channel, const Chain& chain,
                    Element* dx) {
  if (!g.pool) return gradient_of_run(x, dy, g.height * g.width, channel, chain, dx);
  const Pairs pairs;
  const std::int64_t columns = g.output_width();
  for (std::int64_t row = 0; row < g.output_height(); ++row) {
    for (std::int64_t column = 0; 2 * column < g.width; column += kHalf) {
      const std::int64_t at = 2 * row * g.width + 2 * column, count = g.width - 2 * column;
      const PairGradient pair{channel, x + at, g.width, count, dy + row * columns + column, columns - column, pairs};
      store_first(chain(pair.above, pair.top.difference), dx + at, count);
      store_first(chain(pair.under, pair.bottom.difference), dx + at + g.width, count);
    }
  }
  if (g.height % 2 == 0) return;
  const std::int64_t last = (g.height - 1) * g.width;
  gradient_of_run(x + last, static_cast<const Element*>(nullptr), g.width, channel, chain, dx + last);
}

template <class Element>
void input_gradient(const Geometry& g, const Element* x, const Element* dy, const Affine& affine,
                    const InputGradient& gradient, Units units, Element* dx) noexcept {
  const std::int64_t plane = g.height * g.width, output_plane = g.output_height() * g.output_width();
  for (std::int64_t unit = units.begin; unit < units.end; ++unit) {
    if (g.channels_last) {
      const Rows<Element> rows{g, x, unit};
      row_gradient(g, rows, dy, affine, gradient, dx + (rows.x - x));
    } else {
      const std::int64_t c = unit % g.channels;
      plane_gradient(g, x + unit * plane, dy + unit * output_plane, Channel::all(affine, c),
                     Chain::all(affine, gradient, c), dx + unit * plane);
    }
  }
}

#endif

template <class Element>
constexpr Kernels<Element> kTable{add_moments<Element>, forward<Element>, add_gradient_sums<Element>,
                                  input_gradient<Element>};

const Kernels<float>* float_table() {
  return &kTable<float>;
}

const Kernels<std::uint16_t>* bfloat16_table() {
  return &kTable<std::uint16_t>;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::norm_relu_pool_passes
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::norm_relu_pool_passes {

HWY_EXPORT(float_table);
HWY_EXPORT(bfloat16_table);

const Kernels<float>& kernels(float) noexcept {
  return *HWY_DYNAMIC_DISPATCH(float_table)();
}

const Kernels<std::uint16_t>& kernels(std::uint16_t) noexcept {
  return *HWY_DYNAMIC_DISPATCH(bfloat16_table)();
}

}  // namespace headrace::norm_relu_pool_passes
#endif  // HWY_ONCE
