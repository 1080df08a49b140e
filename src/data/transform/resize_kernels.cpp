#include "data/transform/resize_kernels.h"

#include <algorithm>
#include <cstring>

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/transform/resize_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

#include "media/codec/transpose_inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::transform::resize_passes {
namespace HWY_NAMESPACE {

// ---- one value at a time: the specification, and images narrower than a vector ----

HWY_INLINE int rounded(int sum, int bits) {
  return (sum + (1 << (bits - 1))) >> bits;
}

// Value `at` of the rows of output row `row`, with strip.fraction bits.
HWY_INLINE std::int16_t blended_rows(const Strip& strip, int row, std::ptrdiff_t at) {
  const Taps& taps = strip.vertical;
  const std::int16_t* weights = taps.weights + std::ptrdiff_t{row} * taps.count;
  int sum = 0;
  for (int k = 0; k < taps.count; ++k) {
    sum += weights[k] * strip.pixels[std::min(taps.begins[row] + k, strip.source_rows - 1) * strip.stride + at];
  }
  return static_cast<std::int16_t>(rounded(sum, taps.bits - strip.fraction));
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain ----

constexpr int kRows = 1;

void resize(const Strip& strip) noexcept {
  const std::ptrdiff_t channels = strip.channels, values = strip.columns * channels;
  const Taps& taps = strip.horizontal;
  for (std::ptrdiff_t i = 0; i < values; ++i) strip.scratch[i] = blended_rows(strip, 0, i);
  for (int j = 0; j < strip.outputs; ++j) {
    const std::ptrdiff_t place = strip.flip ? strip.outputs - 1 - j : j;
    for (std::ptrdiff_t c = 0; c < channels; ++c) {
      const std::int16_t* from = strip.scratch + taps.begins[j] * channels + c;
      int sum = 0;
      for (int k = 0; k < taps.count; ++k) sum += taps.weights[j * taps.count + k] * from[k * channels];
      const int value = rounded(sum, taps.bits + strip.fraction);
      strip.out[strip.plane_stride > 0 ? c * strip.plane_stride + place : place * channels + c] =
          static_cast<std::uint8_t>(value);
    }
  }
}

#else  // ---- vectors ----

// Both axes are blended the same way, a vector of values that have one weight: along columns first; then the strip is
// transposed, so that a vector holds one column of all its rows, and in the end transposed back.

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<std::int16_t>;
using Wide = hn::RepartitionToWide<D>;
using Bytes = hn::Repartition<std::uint8_t, D>;
using V = hn::Vec<D>;
using W = hn::Vec<Wide>;
constexpr D d;
constexpr Wide wide;
constexpr Bytes bytes;
constexpr std::ptrdiff_t kLanes = HWY_LANES(std::int16_t);
constexpr std::ptrdiff_t kGroup = 2 * kLanes;  // Values whose columns are blended at once: a vector of bytes.
constexpr int kRows = static_cast<int>(kLanes);
constexpr int kPlaces = 16;  // Outputs that are blended and transposed together.
static_assert(kRows <= kRowsMax && kPlaces * 4 <= kMargin);

HWY_INLINE W plus_products(W sum, V values, V weights) {
  W rest = hn::Zero(wide);
  const W products = hn::ReorderWidenMulAccumulate(wide, values, weights, hn::Zero(wide), rest);
  return hn::Add(sum, hn::RearrangeToOddPlusEven(products, rest));
}

HWY_INLINE V weight_pair(const std::int16_t* weights) {
  std::int32_t both;
  std::memcpy(&both, weights, sizeof both);
  return hn::BitCast(d, hn::Set(wide, both));
}

// Adds half of what the shift takes away.
HWY_INLINE V demoted(W low, W high, W half, int bits) {
  return hn::ReorderDemote2To(d, hn::ShiftRightSame(hn::Add(low, half), bits),
                              hn::ShiftRightSame(hn::Add(high, half), bits));
}

// A vector whose 128-bit parts come from memory `apart` values from each other.
template <class Tag>
HWY_INLINE hn::Vec<Tag> load_parts(Tag tag, const std::int16_t* from, std::ptrdiff_t apart) {
  if constexpr (sizeof(hn::Vec<Tag>) == 16) {
    return hn::LoadU(tag, from);
  } else {
    const hn::Half<Tag> half;
    constexpr std::ptrdiff_t kParts = sizeof(hn::Vec<Tag>) / 32;
    return hn::Combine(tag, load_parts(half, from + kParts * apart, apart), load_parts(half, from, apart));
  }
}

template <class Tag>
HWY_INLINE void store_parts(Tag tag, hn::Vec<Tag> v, std::uint8_t* to, std::ptrdiff_t apart) {
  if constexpr (sizeof(hn::Vec<Tag>) == 16) {
    hn::StoreU(v, tag, to);
  } else {
    const hn::Half<Tag> half;
    constexpr std::ptrdiff_t kParts = sizeof(hn::Vec<Tag>) / 32;
    store_parts(half, hn::LowerHalf(half, v), to, apart);
    store_parts(half, hn::UpperHalf(half, v), to + kParts * apart, apart);
  }
}

// Of kGroup values from `at` on, one output row. Of each 16 values the first 8 go to the lower half of `out`.
HWY_INLINE void blend_rows(const Strip& strip, int row, std::ptrdiff_t at, std::int16_t* out) {
  const Taps& taps = strip.vertical;
  const std::int16_t* weights = taps.weights + std::ptrdiff_t{row} * taps.count;
  const int last = strip.source_rows - 1;
  W sum0 = hn::Zero(wide), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  const auto zero = hn::Zero(bytes);
  for (int k = 0, y = taps.begins[row]; k < taps.count; k += 2, y += 2) {
    const V weight = weight_pair(weights + k);
    const auto a = hn::LoadU(bytes, strip.pixels + std::min(y, last) * strip.stride + at);
    const auto b = hn::LoadU(bytes, strip.pixels + std::min(y + 1, last) * strip.stride + at);
    const auto low = hn::InterleaveLower(bytes, a, b), high = hn::InterleaveUpper(bytes, a, b);
    sum0 = plus_products(sum0, hn::BitCast(d, hn::InterleaveLower(bytes, low, zero)), weight);
    sum1 = plus_products(sum1, hn::BitCast(d, hn::InterleaveUpper(bytes, low, zero)), weight);
    sum2 = plus_products(sum2, hn::BitCast(d, hn::InterleaveLower(bytes, high, zero)), weight);
    sum3 = plus_products(sum3, hn::BitCast(d, hn::InterleaveUpper(bytes, high, zero)), weight);
  }
  const int bits = taps.bits - strip.fraction;
  const W half = hn::Set(wide, 1 << (bits - 1));
  hn::Store(demoted(sum0, sum1, half, bits), d, out);
  hn::Store(demoted(sum2, sum3, half, bits), d, out + kLanes);
}

// kGroup columns of all rows of the strip.
HWY_INLINE void make_columns(const Strip& strip, std::ptrdiff_t at) {
  HWY_ALIGN std::int16_t group[kRows * kGroup];
  for (int row = 0; row < strip.rows; ++row) blend_rows(strip, row, at, group + row * kGroup);
  if (strip.rows < kRows) {  // Nobody wants the rest, but it is read.
    std::memset(group + strip.rows * kGroup, 0, static_cast<std::size_t>((kRows - strip.rows) * kGroup) * 2);
  }
  std::int16_t* to = strip.scratch + at * kLanes;
  for (std::ptrdiff_t eight = 0; eight < kGroup / 8; ++eight, to += 8 * kLanes) {
    const std::int16_t* from = group + (eight % 2) * kLanes + eight / 2 * 8;
    V v[8];
    for (int row = 0; row < 8; ++row) v[row] = load_parts(d, from + row * kGroup, 8 * kGroup);
    codec::vectors::HWY_NAMESPACE::transpose(d, v);
    for (int column = 0; column < 8; ++column) hn::StoreU(v[column], d, to + column * kLanes);
  }
}

// One output of all rows.
template <int kChannels>
HWY_INLINE void blend_columns(const Strip& strip, int output, std::int16_t* out, std::ptrdiff_t apart) {
  const Taps& taps = strip.horizontal;
  const std::int16_t* weights = taps.weights + std::ptrdiff_t{output} * taps.count;
  const std::int16_t* from = strip.scratch + std::ptrdiff_t{taps.begins[output]} * kChannels * kLanes;
  W low[kChannels], high[kChannels];
  for (int c = 0; c < kChannels; ++c) low[c] = high[c] = hn::Zero(wide);
  for (int k = 0; k < taps.count; k += 2, from += 2 * kChannels * kLanes) {
    const V weight = weight_pair(weights + k);
    for (int c = 0; c < kChannels; ++c) {
      const V a = hn::LoadU(d, from + c * kLanes), b = hn::LoadU(d, from + (c + kChannels) * kLanes);
      low[c] = plus_products(low[c], hn::InterleaveLower(d, a, b), weight);
      high[c] = plus_products(high[c], hn::InterleaveUpper(d, a, b), weight);
    }
  }
  const int bits = taps.bits + strip.fraction;
  const W half = hn::Set(wide, 1 << (bits - 1));
  for (int c = 0; c < kChannels; ++c) hn::Store(demoted(low[c], high[c], half, bits), d, out + c * apart);
}

// 16 columns of all rows to as many bytes of each.
HWY_INLINE void store_columns(const std::int16_t* columns, std::uint8_t* out, std::ptrdiff_t row_stride) {
  V even[8], odd[8];
  for (int i = 0; i < 8; ++i) {
    even[i] = hn::Load(d, columns + 2 * i * kLanes);
    odd[i] = hn::Load(d, columns + (2 * i + 1) * kLanes);
  }
  codec::vectors::HWY_NAMESPACE::transpose(d, even);
  codec::vectors::HWY_NAMESPACE::transpose(d, odd);
  for (int row = 0; row < 8; ++row) {
    const V both = hn::Or(even[row], hn::ShiftLeft<8>(odd[row]));
    store_parts(bytes, hn::BitCast(bytes, both), out + row * row_stride, 8 * row_stride);
  }
}

// Outputs [first, first + kPlaces), or what there is of them: behind the last stands the last again.
template <int kChannels>
HWY_INLINE void make_outputs(const Strip& strip, int first) {
  HWY_ALIGN std::int16_t columns[kPlaces * kChannels * kLanes];
  const bool planes = strip.plane_stride > 0;
  for (int i = 0; i < kPlaces; ++i) {
    const std::ptrdiff_t place = strip.flip ? kPlaces - 1 - i : i;
    std::int16_t* out = columns + (planes ? place : place * kChannels) * kLanes;
    blend_columns<kChannels>(strip, std::min(first + i, strip.outputs - 1), out, (planes ? kPlaces : 1) * kLanes);
  }
  const std::ptrdiff_t place = strip.flip ? strip.outputs - kPlaces - first : first;
  for (int c = 0; c < kChannels; ++c) {
    std::uint8_t* out = strip.out + (planes ? c * strip.plane_stride + place : place * kChannels + c * kPlaces);
    store_columns(columns + c * kPlaces * kLanes, out, strip.row_stride);
  }
}

// Columns are made when outputs first need them, so that they are read from the nearest cache.
template <int kChannels>
HWY_INLINE void resize_strip(const Strip& strip) {
  const std::ptrdiff_t values = std::ptrdiff_t{strip.columns} * kChannels;
  std::ptrdiff_t made = 0;
  for (int first = 0; first < strip.outputs; first += kPlaces) {
    const int last = std::min(first + kPlaces, strip.outputs) - 1;
    const std::ptrdiff_t wanted =
        std::min<std::ptrdiff_t>((strip.horizontal.begins[last] + strip.horizontal.count) * kChannels, values);
    for (; made < wanted; made += kGroup) {
      if (values >= kGroup) {
        make_columns(strip, std::min(made, values - kGroup));
        continue;
      }
      for (std::ptrdiff_t at = 0; at < values; ++at) {
        for (int row = 0; row < strip.rows; ++row) strip.scratch[at * kLanes + row] = blended_rows(strip, row, at);
      }
    }
    make_outputs<kChannels>(strip, first);
  }
}

void resize(const Strip& strip) noexcept {
  switch (strip.channels) {
    case 1:
      return resize_strip<1>(strip);
    case 2:
      return resize_strip<2>(strip);
    case 3:
      return resize_strip<3>(strip);
    default:
      return resize_strip<4>(strip);
  }
}

#endif

constexpr Kernels kTable{kRows, resize};

const Kernels* table() {
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::transform::resize_passes
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transform::resize_passes {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace headrace::transform::resize_passes
#endif  // HWY_ONCE
