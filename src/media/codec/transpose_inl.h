// The 8 x 8 transpose that kernels of several files use. Highway compiles it once per instruction set.
#if defined(HEADRACE_CODEC_TRANSPOSE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADRACE_CODEC_TRANSPOSE_INL_H
#undef HEADRACE_CODEC_TRANSPOSE_INL_H
#else
#define HEADRACE_CODEC_TRANSPOSE_INL_H
#endif

#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace headrace::codec::vectors {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Of eight vectors of 16-bit values, in each 128-bit part the 8 x 8 values. `D`: a tag of 16-bit lanes.
template <class D>
HWY_INLINE void transpose(D d, hn::Vec<D>* v) {
  using V = hn::Vec<D>;
  const hn::RepartitionToWide<D> wide;
  const hn::RepartitionToWide<decltype(wide)> pairs;
  using W = hn::Vec<decltype(wide)>;
  using P = hn::Vec<decltype(pairs)>;
  const auto low16 = [&](V a, V b) { return hn::BitCast(wide, hn::InterleaveLower(d, a, b)); };
  const auto high16 = [&](V a, V b) { return hn::BitCast(wide, hn::InterleaveUpper(d, a, b)); };
  const W a0 = low16(v[0], v[1]), a1 = high16(v[0], v[1]), a2 = low16(v[2], v[3]), a3 = high16(v[2], v[3]);
  const W a4 = low16(v[4], v[5]), a5 = high16(v[4], v[5]), a6 = low16(v[6], v[7]), a7 = high16(v[6], v[7]);
  const auto low32 = [&](W a, W b) { return hn::BitCast(pairs, hn::InterleaveLower(wide, a, b)); };
  const auto high32 = [&](W a, W b) { return hn::BitCast(pairs, hn::InterleaveUpper(wide, a, b)); };
  const P b0 = low32(a0, a2), b1 = high32(a0, a2), b2 = low32(a1, a3), b3 = high32(a1, a3);
  const P b4 = low32(a4, a6), b5 = high32(a4, a6), b6 = low32(a5, a7), b7 = high32(a5, a7);
  const auto low64 = [&](P a, P b) { return hn::BitCast(d, hn::InterleaveLower(pairs, a, b)); };
  const auto high64 = [&](P a, P b) { return hn::BitCast(d, hn::InterleaveUpper(pairs, a, b)); };
  v[0] = low64(b0, b4), v[1] = high64(b0, b4), v[2] = low64(b1, b5), v[3] = high64(b1, b5);
  v[4] = low64(b2, b6), v[5] = high64(b2, b6), v[6] = low64(b3, b7), v[7] = high64(b3, b7);
}

}  // namespace HWY_NAMESPACE
}  // namespace headrace::codec::vectors
HWY_AFTER_NAMESPACE();
#endif

#endif
