#include "media/codec/jpeg_kernels.h"

#include <algorithm>
#include <cstring>

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "media/codec/jpeg_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

#include "media/codec/transpose_inl.h"

HWY_BEFORE_NAMESPACE();
namespace headrace::codec::jpeg_passes {
namespace HWY_NAMESPACE {

// Cosines and their sums in 13-bit fixed point, named by their values: those of libjpeg-turbo's jidctint.c and
// jidctred.c, the first after Loeffler, Ligtenberg and Moschytz.
constexpr int kBits = 13;
constexpr int k0_211 = 1730, k0_298 = 2446, k0_390 = 3196, k0_509 = 4176, k0_541 = 4433, k0_601 = 4926, k0_720 = 5906,
              k0_765 = 6270, k0_850 = 6967, k0_899 = 7373, k1_061 = 8697, k1_175 = 9633, k1_272 = 10426, k1_451 = 11893,
              k1_501 = 12299, k1_847 = 15137, k1_961 = 16069, k2_053 = 16819, k2_172 = 17799, k2_562 = 20995,
              k3_072 = 25172, k3_624 = 29692;
// The first pass keeps two bits of fraction. The second takes them away, and the factor 8 of both passes.
constexpr int kFirstShift = kBits - 2, kSecondShift = kBits + 2 + 3;
// The sums of means of two and of four neighbours are twice and four times as large, so each pass takes so many bits
// more away. The fifth frequency has no part in a mean of two, nor have the third and the seventh in one of four.
constexpr int kToFour = 1, kToTwo = 2;

// ---- one value at a time: the specification, and what is left over beside whole vectors ----

HWY_INLINE std::uint8_t limited(int value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0, 255));
}

HWY_INLINE void rgb_of(int y, int blue, int red, std::uint8_t* out) {
  blue -= 128;
  red -= 128;
  // Factors of T.871 in 16-bit fixed point, as in libjpeg-turbo's jdcolor.c: 1.402, 0.34414, 0.71414, 1.772.
  constexpr int kHalf = 1 << 15;
  out[0] = limited(y + ((91881 * red + kHalf) >> 16));
  out[1] = limited(y + ((-22554 * blue - 46802 * red + kHalf) >> 16));
  out[2] = limited(y + ((116130 * blue + kHalf) >> 16));
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain ----

constexpr int kTogether = 1;

HWY_INLINE std::int16_t wrapped(int value) {
  return static_cast<std::int16_t>(value);
}

HWY_INLINE std::int16_t descaled(int value, int shift) {
  return static_cast<std::int16_t>(std::clamp((value + (1 << (shift - 1))) >> shift, -32768, 32767));
}

// One pass over the 8 values at v[0], v[step], ... Loeffler, Ligtenberg and Moschytz, as libjpeg-turbo's jidctint has
// it.
HWY_INLINE void transform(std::int16_t* v, int step, int shift) {
  const int in0 = v[0], in1 = v[step], in2 = v[2 * step], in3 = v[3 * step], in4 = v[4 * step], in5 = v[5 * step],
            in6 = v[6 * step], in7 = v[7 * step];
  const int turned2 = in2 * k0_541 + in6 * (k0_541 - k1_847), turned3 = in2 * (k0_541 + k0_765) + in6 * k0_541;
  const int sum = wrapped(in0 + in4) * (1 << kBits), difference = wrapped(in0 - in4) * (1 << kBits);
  const int even0 = sum + turned3, even3 = sum - turned3, even1 = difference + turned2, even2 = difference - turned2;

  const int z3 = wrapped(in7 + in3), z4 = wrapped(in5 + in1);
  const int turned_z3 = z3 * (k1_175 - k1_961) + z4 * k1_175, turned_z4 = z3 * k1_175 + z4 * (k1_175 - k0_390);
  const int odd0 = in7 * (k0_298 - k0_899) - in1 * k0_899 + turned_z3;
  const int odd1 = in5 * (k2_053 - k2_562) - in3 * k2_562 + turned_z4;
  const int odd2 = in3 * (k3_072 - k2_562) - in5 * k2_562 + turned_z3;
  const int odd3 = in1 * (k1_501 - k0_899) - in7 * k0_899 + turned_z4;

  v[0] = descaled(even0 + odd3, shift);
  v[step] = descaled(even1 + odd2, shift);
  v[2 * step] = descaled(even2 + odd1, shift);
  v[3 * step] = descaled(even3 + odd0, shift);
  v[4 * step] = descaled(even3 - odd0, shift);
  v[5 * step] = descaled(even2 - odd1, shift);
  v[6 * step] = descaled(even1 - odd2, shift);
  v[7 * step] = descaled(even0 - odd3, shift);
}

HWY_INLINE void write_samples(std::int16_t* coefficients, int side, std::uint8_t* out, std::ptrdiff_t stride) {
  for (int row = 0; row < side; ++row) {
    for (int column = 0; column < side; ++column) {
      out[row * stride + column] = limited(coefficients[row * 8 + column] + 128);
    }
  }
  std::memset(coefficients, 0, 64 * sizeof *coefficients);
}

void inverse_transform(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept {
  for (int column = 0; column < 8; ++column) transform(coefficients + column, 8, kFirstShift);
  for (int row = 0; row < 8; ++row) transform(coefficients + 8 * row, 1, kSecondShift);
  write_samples(coefficients, 8, out, stride);
}

// Sums of coefficients that no image has run over as those of vectors do.
HWY_INLINE std::int16_t descaled_wide(std::int64_t value, int shift) {
  const auto rounded = static_cast<std::int32_t>(static_cast<std::uint32_t>(value + (1 << (shift - 1))));
  return static_cast<std::int16_t>(std::clamp(rounded >> shift, -32768, 32767));
}

// One pass over the 8 values at v[0], v[step], ... to 4 in place of the first. This and the next as in libjpeg-turbo's
// jidctred.c.
HWY_INLINE void transform_to_4(std::int16_t* v, int step, int shift) {
  const std::int64_t in1 = v[step], in2 = v[2 * step], in3 = v[3 * step], in5 = v[5 * step], in6 = v[6 * step],
                     in7 = v[7 * step];
  const std::int64_t even = std::int64_t{v[0]} * (1 << (kBits + kToFour)), turned = in2 * k1_847 - in6 * k0_765;
  const std::int64_t outer = in1 * k2_562 + in3 * k0_899 - in5 * k0_601 - in7 * k0_509;
  const std::int64_t inner = in1 * k1_061 - in3 * k2_172 + in5 * k1_451 - in7 * k0_211;
  v[0] = descaled_wide(even + turned + outer, shift);
  v[step] = descaled_wide(even - turned + inner, shift);
  v[2 * step] = descaled_wide(even - turned - inner, shift);
  v[3 * step] = descaled_wide(even + turned - outer, shift);
}

HWY_INLINE void transform_to_2(std::int16_t* v, int step, int shift) {
  const std::int64_t in1 = v[step], in3 = v[3 * step], in5 = v[5 * step], in7 = v[7 * step];
  const std::int64_t even = std::int64_t{v[0]} * (1 << (kBits + kToTwo));
  const std::int64_t odd = in1 * k3_624 - in3 * k1_272 + in5 * k0_850 - in7 * k0_720;
  v[0] = descaled_wide(even + odd, shift);
  v[step] = descaled_wide(even - odd, shift);
}

void inverse_transform_to_4(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept {
  for (int column = 0; column < 8; ++column) transform_to_4(coefficients + column, 8, kFirstShift + kToFour);
  for (int row = 0; row < 4; ++row) transform_to_4(coefficients + 8 * row, 1, kSecondShift + kToFour);
  write_samples(coefficients, 4, out, stride);
}

void inverse_transform_to_2(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept {
  for (int column = 0; column < 8; ++column) transform_to_2(coefficients + column, 8, kFirstShift + kToTwo);
  for (int row = 0; row < 2; ++row) transform_to_2(coefficients + 8 * row, 1, kSecondShift + kToTwo);
  write_samples(coefficients, 2, out, stride);
}

// This and the next two: libjpeg-turbo's jdsample.c, h2v1, h2v2 and h1v2 fancy upsampling.
void widen(const std::uint8_t* in, std::ptrdiff_t count, std::uint8_t* out) noexcept {
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    out[2 * i] = static_cast<std::uint8_t>((3 * in[i] + in[i - 1] + 1) >> 2);
    out[2 * i + 1] = static_cast<std::uint8_t>((3 * in[i] + in[i + 1] + 2) >> 2);
  }
}

void widen_between(const std::uint8_t* near, const std::uint8_t* far, std::ptrdiff_t count, std::uint16_t* sums,
                   std::uint8_t* out) noexcept {
  for (std::ptrdiff_t i = -1; i <= count; ++i) sums[i + 1] = static_cast<std::uint16_t>(3 * near[i] + far[i]);
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    out[2 * i] = static_cast<std::uint8_t>((3 * sums[i + 1] + sums[i] + 8) >> 4);
    out[2 * i + 1] = static_cast<std::uint8_t>((3 * sums[i + 1] + sums[i + 2] + 7) >> 4);
  }
}

void blend(const std::uint8_t* near, const std::uint8_t* far, int bias, std::ptrdiff_t count,
           std::uint8_t* out) noexcept {
  for (std::ptrdiff_t i = 0; i < count; ++i) out[i] = static_cast<std::uint8_t>((3 * near[i] + far[i] + bias) >> 2);
}

void rgb(const std::uint8_t* luma, const std::uint8_t* blue, const std::uint8_t* red, std::ptrdiff_t count,
         std::uint8_t* out) noexcept {
  for (std::ptrdiff_t i = 0; i < count; ++i) rgb_of(luma[i], blue[i], red[i], out + 3 * i);
}

#else  // ---- vectors ----

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<std::int16_t>;
using Wide = hn::RepartitionToWide<D>;
using Unsigned = hn::RebindToUnsigned<D>;
using Bytes = hn::Rebind<std::uint8_t, D>;
using AllBytes = hn::Repartition<std::uint8_t, D>;
using V = hn::Vec<D>;
using W = hn::Vec<Wide>;
constexpr D d;
constexpr Wide wide;
constexpr Unsigned unsigned16;
constexpr std::ptrdiff_t kLanes = HWY_LANES(std::int16_t);
constexpr int kTogether = static_cast<int>(kLanes / 8);
static_assert(kTogether <= kTogetherMax && 2 * kLanes <= kPadding);

// 32-bit values of 16 lanes' worth of columns, in the order of InterleaveLower and InterleaveUpper.
struct Halves {
  W low, high;
};

HWY_INLINE Halves plus(const Halves& a, const Halves& b) {
  return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
}
HWY_INLINE Halves minus(const Halves& a, const Halves& b) {
  return {hn::Sub(a.low, b.low), hn::Sub(a.high, b.high)};
}

// Two values a lane, to be multiplied and added in pairs.
struct Interleaved {
  V low, high;
  HWY_INLINE Interleaved(V a, V b) : low(hn::InterleaveLower(d, a, b)), high(hn::InterleaveUpper(d, a, b)) {}

  HWY_INLINE Halves times(int of_a, int of_b) const {
    const auto factor = static_cast<std::uint32_t>(of_a & 0xFFFF) | static_cast<std::uint32_t>(of_b) << 16;
    const V factors = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<Wide>{}, factor));
    return {dot(low, factors), dot(high, factors)};
  }
  HWY_INLINE static W dot(V a, V b) {
    W rest = hn::Zero(wide);
    const W sum = hn::ReorderWidenMulAccumulate(wide, a, b, hn::Zero(wide), rest);
    return hn::RearrangeToOddPlusEven(sum, rest);
  }
};

// v * 2^kPower.
template <int kPower>
HWY_INLINE Halves scaled(V v) {
  const V zero = hn::Zero(d);
  return {hn::ShiftRight<16 - kPower>(hn::BitCast(wide, hn::InterleaveLower(d, zero, v))),
          hn::ShiftRight<16 - kPower>(hn::BitCast(wide, hn::InterleaveUpper(d, zero, v)))};
}

template <int kShift>
HWY_INLINE V descaled(const Halves& value) {
  const W half = hn::Set(wide, 1 << (kShift - 1));
  return hn::ReorderDemote2To(d, hn::ShiftRight<kShift>(hn::Add(value.low, half)),
                              hn::ShiftRight<kShift>(hn::Add(value.high, half)));
}

// One pass over columns: lane i of the eight vectors are the values of column i.
template <int kShift>
HWY_INLINE void transform(V* v) {
  const Interleaved z26(v[2], v[6]);
  const Halves turned2 = z26.times(k0_541, k0_541 - k1_847), turned3 = z26.times(k0_541 + k0_765, k0_541);
  const Halves sum = scaled<kBits>(hn::Add(v[0], v[4])), difference = scaled<kBits>(hn::Sub(v[0], v[4]));
  const Halves even0 = plus(sum, turned3), even3 = minus(sum, turned3);
  const Halves even1 = plus(difference, turned2), even2 = minus(difference, turned2);

  const Interleaved z(hn::Add(v[7], v[3]), hn::Add(v[5], v[1])), z71(v[7], v[1]), z53(v[5], v[3]);
  const Halves turned_z3 = z.times(k1_175 - k1_961, k1_175), turned_z4 = z.times(k1_175, k1_175 - k0_390);
  const Halves odd0 = plus(z71.times(k0_298 - k0_899, -k0_899), turned_z3);
  const Halves odd1 = plus(z53.times(k2_053 - k2_562, -k2_562), turned_z4);
  const Halves odd2 = plus(z53.times(-k2_562, k3_072 - k2_562), turned_z3);
  const Halves odd3 = plus(z71.times(-k0_899, k1_501 - k0_899), turned_z4);

  v[0] = descaled<kShift>(plus(even0, odd3));
  v[1] = descaled<kShift>(plus(even1, odd2));
  v[2] = descaled<kShift>(plus(even2, odd1));
  v[3] = descaled<kShift>(plus(even3, odd0));
  v[4] = descaled<kShift>(minus(even3, odd0));
  v[5] = descaled<kShift>(minus(even2, odd1));
  v[6] = descaled<kShift>(minus(even1, odd2));
  v[7] = descaled<kShift>(minus(even0, odd3));
}

HWY_INLINE void take_coefficients(std::int16_t* coefficients, V* v) {
  for (int row = 0; row < 8; ++row) {
    v[row] = hn::LoadU(d, coefficients + row * kLanes);
    hn::StoreU(hn::Zero(d), d, coefficients + row * kLanes);
  }
}

void inverse_transform(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept {
  V v[8];
  take_coefficients(coefficients, v);
  transform<kFirstShift>(v);
  vectors::HWY_NAMESPACE::transpose(d, v);
  transform<kSecondShift>(v);
  vectors::HWY_NAMESPACE::transpose(d, v);
  const V middle = hn::Set(d, 128);
  for (int row = 0; row < 8; ++row, out += stride) {
    hn::StoreU(hn::DemoteTo(Bytes{}, hn::SaturatedAdd(v[row], middle)), Bytes{}, out);
  }
}

// To v[0] .. v[3]; the rest becomes 0.
template <int kShift>
HWY_INLINE void transform_to_4(V* v) {
  const Interleaved z13(v[1], v[3]), z57(v[5], v[7]);
  const Halves even = scaled<kBits + kToFour>(v[0]), turned = Interleaved(v[2], v[6]).times(k1_847, -k0_765);
  const Halves outer = plus(z13.times(k2_562, k0_899), z57.times(-k0_601, -k0_509));
  const Halves inner = plus(z13.times(k1_061, -k2_172), z57.times(k1_451, -k0_211));
  const Halves sum = plus(even, turned), difference = minus(even, turned);
  v[0] = descaled<kShift>(plus(sum, outer));
  v[1] = descaled<kShift>(plus(difference, inner));
  v[2] = descaled<kShift>(minus(difference, inner));
  v[3] = descaled<kShift>(minus(sum, outer));
  v[4] = v[5] = v[6] = v[7] = hn::Zero(d);
}

// To v[0] and v[1]; the rest becomes 0.
template <int kShift>
HWY_INLINE void transform_to_2(V* v) {
  const Halves even = scaled<kBits + kToTwo>(v[0]);
  const Halves odd =
      plus(Interleaved(v[1], v[3]).times(k3_624, -k1_272), Interleaved(v[5], v[7]).times(k0_850, -k0_720));
  v[0] = descaled<kShift>(plus(even, odd));
  v[1] = descaled<kShift>(minus(even, odd));
  v[2] = v[3] = v[4] = v[5] = v[6] = v[7] = hn::Zero(d);
}

// The first kSide columns of each block.
template <int kSide>
HWY_INLINE void write_samples(const V* v, std::uint8_t* out, std::ptrdiff_t stride) {
  const V middle = hn::Set(d, 128);
  for (int row = 0; row < kSide; ++row, out += stride) {
    std::uint8_t samples[kLanes];
    hn::StoreU(hn::DemoteTo(Bytes{}, hn::SaturatedAdd(v[row], middle)), Bytes{}, samples);
    for (int block = 0; block < kTogether; ++block) std::memcpy(out + block * kSide, samples + block * 8, kSide);
  }
}

void inverse_transform_to_4(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept {
  V v[8];
  take_coefficients(coefficients, v);
  transform_to_4<kFirstShift + kToFour>(v);
  vectors::HWY_NAMESPACE::transpose(d, v);
  transform_to_4<kSecondShift + kToFour>(v);
  vectors::HWY_NAMESPACE::transpose(d, v);
  write_samples<4>(v, out, stride);
}

void inverse_transform_to_2(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept {
  V v[8];
  take_coefficients(coefficients, v);
  transform_to_2<kFirstShift + kToTwo>(v);
  vectors::HWY_NAMESPACE::transpose(d, v);
  transform_to_2<kSecondShift + kToTwo>(v);
  vectors::HWY_NAMESPACE::transpose(d, v);
  write_samples<2>(v, out, stride);
}

HWY_INLINE hn::Vec<Unsigned> load(const std::uint8_t* from) {
  return hn::PromoteTo(unsigned16, hn::LoadU(Bytes{}, from));
}

HWY_INLINE hn::Vec<Unsigned> tripled(hn::Vec<Unsigned> v) {
  return hn::Add(hn::Add(v, v), v);
}

// Bytes of `even` and `odd` in turn.
HWY_INLINE void store_pairs(hn::Vec<Unsigned> even, hn::Vec<Unsigned> odd, std::uint8_t* out) {
  hn::StoreU(hn::BitCast(AllBytes{}, hn::Or(even, hn::ShiftLeft<8>(odd))), AllBytes{}, out);
}

void widen(const std::uint8_t* in, std::ptrdiff_t count, std::uint8_t* out) noexcept {
  const auto one = hn::Set(unsigned16, 1), two = hn::Set(unsigned16, 2);
  for (std::ptrdiff_t i = 0; i < count; i += kLanes) {
    const auto near = tripled(load(in + i));
    const auto even = hn::ShiftRight<2>(hn::Add(hn::Add(near, load(in + i - 1)), one));
    const auto odd = hn::ShiftRight<2>(hn::Add(hn::Add(near, load(in + i + 1)), two));
    store_pairs(even, odd, out + 2 * i);
  }
}

void widen_between(const std::uint8_t* near, const std::uint8_t* far, std::ptrdiff_t count, std::uint16_t* sums,
                   std::uint8_t* out) noexcept {
  for (std::ptrdiff_t i = -1; i <= count; i += kLanes) {
    hn::StoreU(hn::Add(tripled(load(near + i)), load(far + i)), unsigned16, sums + i + 1);
  }
  const auto eight = hn::Set(unsigned16, 8), seven = hn::Set(unsigned16, 7);
  for (std::ptrdiff_t i = 0; i < count; i += kLanes) {
    const auto middle = tripled(hn::LoadU(unsigned16, sums + i + 1));
    const auto left = hn::LoadU(unsigned16, sums + i), right = hn::LoadU(unsigned16, sums + i + 2);
    store_pairs(hn::ShiftRight<4>(hn::Add(hn::Add(middle, left), eight)),
                hn::ShiftRight<4>(hn::Add(hn::Add(middle, right), seven)), out + 2 * i);
  }
}

void blend(const std::uint8_t* near, const std::uint8_t* far, int bias, std::ptrdiff_t count,
           std::uint8_t* out) noexcept {
  const auto added = hn::Set(unsigned16, static_cast<std::uint16_t>(bias));
  for (std::ptrdiff_t i = 0; i < count; i += kLanes) {
    const auto sum = hn::ShiftRight<2>(hn::Add(hn::Add(tripled(load(near + i)), load(far + i)), added));
    hn::StoreU(hn::DemoteTo(Bytes{}, hn::BitCast(d, sum)), Bytes{}, out + i);
  }
}

// As rgb_of: 1.402 = 1 + 26345 / 2^16, 1.772 = 2 - 14942 / 2^16, 0.71414 = 1 - 18734 / 2^16.
HWY_INLINE void rgb_of_vectors(const std::uint8_t* luma, const std::uint8_t* blue, const std::uint8_t* red,
                               std::uint8_t* out) {
  const V y = hn::BitCast(d, load(luma)), middle = hn::Set(d, 128);
  const V b = hn::Sub(hn::BitCast(d, load(blue)), middle), r = hn::Sub(hn::BitCast(d, load(red)), middle);
  const Interleaved chroma(b, r);
  // Rounding a / 2^16 as ((a / 2^15) + 1) / 2: twice the value keeps the upper 16 bits of the product enough.
  const V doubled = hn::Add(r, r);
  const V part_of_red = hn::ShiftRight<1>(hn::Add(hn::MulHigh(doubled, hn::Set(d, 26345)), hn::Set(d, 1)));
  const V part_of_blue = hn::MulFixedPoint15(b, hn::Set(d, -7471));
  const V part_of_green = descaled<16>(chroma.times(-22554, 18734));
  constexpr Bytes bytes;
  const V R = hn::Add(hn::Add(y, r), part_of_red), G = hn::Add(hn::Sub(y, r), part_of_green);
  const V B = hn::Add(hn::Add(y, hn::Add(b, b)), part_of_blue);
  hn::StoreInterleaved3(hn::DemoteTo(bytes, R), hn::DemoteTo(bytes, G), hn::DemoteTo(bytes, B), bytes, out);
}

void rgb(const std::uint8_t* luma, const std::uint8_t* blue, const std::uint8_t* red, std::ptrdiff_t count,
         std::uint8_t* out) noexcept {
  if (count < kLanes) {
    for (std::ptrdiff_t i = 0; i < count; ++i) rgb_of(luma[i], blue[i], red[i], out + 3 * i);
    return;
  }
  for (std::ptrdiff_t i = 0; i + kLanes <= count; i += kLanes) rgb_of_vectors(luma + i, blue + i, red + i, out + 3 * i);
  const std::ptrdiff_t last = count - kLanes;  // Some pixels a second time.
  rgb_of_vectors(luma + last, blue + last, red + last, out + 3 * last);
}

#endif

constexpr Kernels kTable{
    kTogether, inverse_transform, inverse_transform_to_4, inverse_transform_to_2, widen, widen_between, blend, rgb};

const Kernels* table() {
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::codec::jpeg_passes
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::codec::jpeg_passes {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace headrace::codec::jpeg_passes
#endif  // HWY_ONCE
