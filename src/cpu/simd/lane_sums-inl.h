// Sums over the lanes of several vectors at once: each step of the reduction adds two vectors for
// every two that come in, so that four or sixteen cost little more than one.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_LANE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_LANE_SUMS_INL_H_
#undef TILEWISE_CPU_SIMD_LANE_SUMS_INL_H_
#else
#define TILEWISE_CPU_SIMD_LANE_SUMS_INL_H_
#endif
// clang-format on

#include "cpu/simd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // one lane
HWY_INLINE void sum_lanes(const F32Vec (&v)[4], float* out) {
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
}
HWY_INLINE void sum_lanes(const F32Vec (&v)[4][4], float* out, int64_t stride) {
  for (int r = 0; r < 4; ++r) sum_lanes(v[r], out + r * stride);
}
#else

using FourFloats = hn::FixedTag<float, 4>;

// Every 128-bit block holds its own part of the four vectors' sums, in order.
HWY_INLINE F32Vec sums_within_blocks(const F32Vec (&v)[4]) {
  const F32Tag d;
  const F32Vec v02 =
      hn::Add(hn::InterleaveLower(d, v[0], v[2]), hn::InterleaveUpper(d, v[0], v[2]));
  const F32Vec v13 =
      hn::Add(hn::InterleaveLower(d, v[1], v[3]), hn::InterleaveUpper(d, v[1], v[3]));
  return hn::Add(hn::InterleaveLower(d, v02, v13), hn::InterleaveUpper(d, v02, v13));
}

// out[i] = the sum of v[i]'s lanes.
HWY_INLINE void sum_lanes(const F32Vec (&v)[4], float* out) {
  const F32Tag d;
  const FourFloats d4;
  HWY_ALIGN float parts[hn::MaxLanes(F32Tag())];
  hn::Store(sums_within_blocks(v), d, parts);
  auto sum = hn::Load(d4, parts);
  for (std::size_t i = 4; i < hn::Lanes(d); i += 4) sum = hn::Add(sum, hn::Load(d4, parts + i));
  hn::StoreU(sum, d4, out);
}

#if HWY_MAX_BYTES >= 64
// out[r * stride + i] = the sum of v[r][i]'s lanes.
HWY_INLINE void sum_lanes(const F32Vec (&v)[4][4], float* out, int64_t stride) {
  const F32Tag d;
  F32Vec rows[4];  // four blocks of parts each
  for (int r = 0; r < 4; ++r) rows[r] = sums_within_blocks(v[r]);
  F32Vec pairs[2];  // two blocks of row 2 i, two of row 2 i + 1
  for (int i = 0; i < 2; ++i)
    pairs[i] = hn::Add(hn::ConcatLowerLower(d, rows[2 * i + 1], rows[2 * i]),
                       hn::ConcatUpperUpper(d, rows[2 * i + 1], rows[2 * i]));
  // A block of each row: 0, 2, 1, 3.
  const F32Vec sums = hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(pairs[1]), pairs[0]),
                              hn::OddEvenBlocks(pairs[1], hn::SwapAdjacentBlocks(pairs[0])));
  HWY_ALIGN float blocks[16];
  hn::Store(sums, d, blocks);
  const FourFloats d4;
  for (int r = 0; r < 4; ++r)
    hn::StoreU(hn::Load(d4, blocks + (r % 2 * 2 + r / 2) * 4), d4, out + r * stride);
}
#else
HWY_INLINE void sum_lanes(const F32Vec (&v)[4][4], float* out, int64_t stride) {
  for (int r = 0; r < 4; ++r) sum_lanes(v[r], out + r * stride);
}
#endif
#endif  // more than one lane

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
