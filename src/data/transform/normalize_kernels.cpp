#include "data/transform/normalize_kernels.h"

#include <bit>

// Highway compiles this file once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "data/transform/normalize_kernels.cpp"
#include <hwy/foreach_target.h>  // Must come before highway.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace headrace::transform::normalize_passes {
namespace HWY_NAMESPACE {

// ---- one value at a time: the specification, and what is left over beside whole vectors ----

HWY_INLINE void store(float value, float* out) {
  *out = value;
}

HWY_INLINE void store(float value, std::uint16_t* out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  *out = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Four at a time: the simple loop is so short that it took from 210 to 540 ns for 784 values, depending on where the
// linker placed it.
template <class Out>
HWY_INLINE void look_up(const std::uint8_t* values, std::ptrdiff_t count, const float* table, Out* out) {
  std::ptrdiff_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float first = table[values[i]], second = table[values[i + 1]];
    const float third = table[values[i + 2]], fourth = table[values[i + 3]];
    store(first, out + i);
    store(second, out + i + 1);
    store(third, out + i + 2);
    store(fourth, out + i + 3);
  }
  for (; i < count; ++i) store(table[values[i]], out + i);
}

// `begin` is a whole number of pixels.
template <class Out>
HWY_INLINE void look_up_from(std::ptrdiff_t begin, const std::uint8_t* values, std::ptrdiff_t count,
                             const NormalizeTable& table, int channel, Out* out) {
  if (channel != kEveryChannel) return look_up(values + begin, count - begin, table.value[channel], out + begin);
  for (std::ptrdiff_t i = begin, c = 0; i < count; ++i) {
    store(table.value[c][values[i]], out + i);
    c = c + 1 == table.channels ? 0 : c + 1;
  }
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // ---- plain ----

template <class Out>
HWY_INLINE void map_values(const std::uint8_t* values, std::ptrdiff_t count, const NormalizeTable& table, int channel,
                           Out* out) {
  look_up_from(0, values, count, table, channel, out);
}

void split3(const std::uint8_t* pixels, std::ptrdiff_t count, std::uint8_t* first, std::uint8_t* second,
            std::uint8_t* third) noexcept {
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    first[i] = pixels[3 * i];
    second[i] = pixels[3 * i + 1];
    third[i] = pixels[3 * i + 2];
  }
}

#else  // ---- vectors ----

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
using Narrow = hn::Rebind<std::uint8_t, F>;
using Halves = hn::Rebind<std::uint16_t, F>;
using Bits = hn::RebindToUnsigned<F>;
using Bytes = hn::ScalableTag<std::uint8_t>;
constexpr F f;
constexpr std::ptrdiff_t kLanes = HWY_LANES(float);
static_assert(kLanes <= NormalizeTable::kRepeats);

// a / b, `reciprocal` being 1 / b. P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990: what the product leaves of `a` corrects its last bit. NormalizeTable::exact has tried.
HWY_INLINE V quotient(V a, V b, V reciprocal) {
#if HWY_NATIVE_FMA
  const V near = hn::Mul(a, reciprocal);
  return hn::MulAdd(hn::NegMulAdd(near, b, a), reciprocal, near);
#else
  (void)reciprocal;
  return hn::Div(a, b);
#endif
}

struct Channel {
  V mean, deviation, reciprocal;

  HWY_INLINE Channel(const NormalizeTable& table, std::ptrdiff_t at)
      : mean(hn::LoadU(f, table.mean + at)),
        deviation(hn::LoadU(f, table.deviation + at)),
        reciprocal(hn::LoadU(f, table.reciprocal + at)) {}
  HWY_INLINE Channel(const NormalizeTable& table, int channel)
      : mean(hn::Set(f, table.mean[channel])),
        deviation(hn::Set(f, table.deviation[channel])),
        reciprocal(hn::Set(f, table.reciprocal[channel])) {}

  HWY_INLINE V of(const std::uint8_t* values) const {
    const V stored = hn::ConvertTo(f, hn::PromoteTo(hn::RebindToSigned<F>{}, hn::LoadU(Narrow{}, values)));
    const V scaled = quotient(stored, hn::Set(f, 255.0F), hn::Set(f, 1.0F / 255.0F));
    return quotient(hn::Sub(scaled, mean), deviation, reciprocal);
  }
};

HWY_INLINE void store(V v, float* out) {
  hn::StoreU(v, f, out);
}

HWY_INLINE void store(V v, std::uint16_t* out) {
  const auto bits = hn::BitCast(Bits{}, v);
  const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(Bits{}, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(last, hn::Set(Bits{}, 0x7FFF))));
  hn::StoreU(hn::TruncateTo(Halves{}, rounded), Halves{}, out);
}

template <class Out>
HWY_INLINE void map_values(const std::uint8_t* values, std::ptrdiff_t count, const NormalizeTable& table, int channel,
                           Out* out) {
  std::ptrdiff_t i = 0;
  if (!table.exact) {
    // Looked up, as below.
  } else if (channel != kEveryChannel) {
    const Channel of_channel(table, channel);
    for (; i + kLanes <= count; i += kLanes) store(of_channel.of(values + i), out + i);
  } else {
    // As many vectors as there are channels hold whole pixels.
    const std::ptrdiff_t step = kLanes * table.channels;
    for (; i + step <= count; i += step) {
      for (std::ptrdiff_t at = 0; at < step; at += kLanes) {
        store(Channel(table, at).of(values + i + at), out + i + at);
      }
    }
  }
  look_up_from(i, values, count, table, channel, out);
}

void split3(const std::uint8_t* pixels, std::ptrdiff_t count, std::uint8_t* first, std::uint8_t* second,
            std::uint8_t* third) noexcept {
  constexpr Bytes bytes;
  constexpr std::ptrdiff_t kStep = HWY_LANES(std::uint8_t);
  std::ptrdiff_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    hn::Vec<Bytes> a, b, c;
    hn::LoadInterleaved3(bytes, pixels + 3 * i, a, b, c);
    hn::StoreU(a, bytes, first + i);
    hn::StoreU(b, bytes, second + i);
    hn::StoreU(c, bytes, third + i);
  }
  for (; i < count; ++i) {
    first[i] = pixels[3 * i];
    second[i] = pixels[3 * i + 1];
    third[i] = pixels[3 * i + 2];
  }
}

#endif

void to_float(const std::uint8_t* values, std::ptrdiff_t count, const NormalizeTable& table, int channel,
              float* out) noexcept {
  map_values(values, count, table, channel, out);
}

void to_bfloat(const std::uint8_t* values, std::ptrdiff_t count, const NormalizeTable& table, int channel,
               std::uint16_t* out) noexcept {
  map_values(values, count, table, channel, out);
}

constexpr Kernels kTable{to_float, to_bfloat, split3};

const Kernels* table() {
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::transform::normalize_passes
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headrace::transform::normalize_passes {

HWY_EXPORT(table);

const Kernels& kernels() noexcept {
  return *HWY_DYNAMIC_DISPATCH(table)();
}

}  // namespace headrace::transform::normalize_passes
#endif  // HWY_ONCE
