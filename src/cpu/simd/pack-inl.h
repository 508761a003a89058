// Between the caller's tensors and f32 tiles: rows of f32, f16 or bf16 at any row stride become
// contiguous, zero-padded f32 rows; a tile is transposed; rows go back out, times
// a factor, rounded to nearest even.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)  // include guard per target
#ifdef TILEWISE_CPU_SIMD_PACK_INL_H_
#undef TILEWISE_CPU_SIMD_PACK_INL_H_
#else
#define TILEWISE_CPU_SIMD_PACK_INL_H_
#endif
// clang-format on

#include <cstring>

#include "core/half.h"
#include "core/mask.h"
#include "cpu/rows.h"
#include "cpu/simd/matrix.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using F32Vec = hn::Vec<F32Tag>;

// One vector of any dtype as f32.
template <DType kType>
HWY_INLINE F32Vec load_f32(const void* data, int64_t index) {
  const F32Tag d;
  if constexpr (kType == DType::kF32) {
    return hn::LoadU(d, static_cast<const float*>(data) + index);
  } else {
    const auto* const in = static_cast<const uint16_t*>(data) + index;
    const hn::Rebind<uint16_t, F32Tag> du16;
    if constexpr (kType == DType::kBF16) {
      const hn::RebindToUnsigned<F32Tag> du32;
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, in))));
    } else {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // Highway's own knows no inf and no NaN
      HWY_ALIGN float lanes[hn::MaxLanes(F32Tag())];
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f16_to_f32(in[i]);
      return hn::Load(d, lanes);
#else
      return hn::PromoteTo(d,
                           hn::BitCast(hn::Rebind<hwy::float16_t, F32Tag>(), hn::LoadU(du16, in)));
#endif
    }
  }
}

template <DType kType>
HWY_INLINE float load_f32_scalar(const void* data, int64_t index) {
  if constexpr (kType == DType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return kType == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// out[0 ... padded(n)) = in[0 ... n), then zeros. Reads nothing past n.
template <DType kType>
HWY_INLINE void pack_row(const void* in, int64_t n, float* out) {
  const F32Tag d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::Store(load_f32<kType>(in, i), d, out + i);
  for (; i < n; ++i) out[i] = load_f32_scalar<kType>(in, i);
  for (; i < padded(n); ++i) out[i] = 0.0f;
}

// Calls fn with the dtype as a constant.
template <class Fn>
HWY_INLINE void with_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(std::integral_constant<DType, DType::kF32>());
    case DType::kF16:
      return fn(std::integral_constant<DType, DType::kF16>());
    default:
      return fn(std::integral_constant<DType, DType::kBF16>());
  }
}

// Rows `span` of a head's matrix, `rows.cols` numbers each.
HWY_INLINE void pack_rows(const Rows& rows, Span span, Matrix out) {
  with_dtype(rows.dtype, [&](auto type) {
    for (int64_t i = span.begin; i < span.end; ++i)
      pack_row<decltype(type)::value>(rows.row(i), rows.cols, out.row(i - span.begin));
  });
}

HWY_INLINE void zero_rows(Matrix m, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) std::memset(m.row(r), 0, sizeof(float) * padded(cols));
}

// out(c, r) = in(r, c) for r < rows, zero for r up to padded(rows); c runs over padded(cols).
// Four rows at a time: 4 x 4 blocks are transposed within 128-bit lanes, then stored one by one.
HWY_INLINE void transpose(Matrix in, int64_t rows, int64_t cols, Matrix out) {
#if HWY_TARGET == HWY_SCALAR  // one lane: no blocks
  for (int64_t c = 0; c < padded(cols); ++c)
    for (int64_t r = 0; r < padded(rows); ++r) out.row(c)[r] = r < rows ? in.row(r)[c] : 0.0f;
#else
  const F32Tag d;
  const hn::FixedTag<float, 4> d4;
  const int64_t lanes = hn::Lanes(d);
  alignas(64) static constexpr float kZeros[256] = {};  // stands in for rows past the last
  HWY_ALIGN float block[4 * hn::MaxLanes(F32Tag())];
  for (int64_t r = 0; r < padded(rows); r += 4) {
    const float* src[4];
    int64_t step[4];
    for (int i = 0; i < 4; ++i) {
      src[i] = r + i < rows ? in.row(r + i) : kZeros;
      step[i] = r + i < rows ? 1 : 0;
    }
    for (int64_t c = 0; c < padded(cols); c += lanes) {
      const F32Vec a0 = hn::Load(d, src[0] + c * step[0]), a1 = hn::Load(d, src[1] + c * step[1]);
      const F32Vec a2 = hn::Load(d, src[2] + c * step[2]), a3 = hn::Load(d, src[3] + c * step[3]);
      const F32Vec l02 = hn::InterleaveLower(d, a0, a2), l13 = hn::InterleaveLower(d, a1, a3);
      const F32Vec u02 = hn::InterleaveUpper(d, a0, a2), u13 = hn::InterleaveUpper(d, a1, a3);
      hn::Store(hn::InterleaveLower(d, l02, l13), d, block);
      hn::Store(hn::InterleaveUpper(d, l02, l13), d, block + lanes);
      hn::Store(hn::InterleaveLower(d, u02, u13), d, block + 2 * lanes);
      hn::Store(hn::InterleaveUpper(d, u02, u13), d, block + 3 * lanes);
      for (int64_t k = 0; k < lanes; ++k)
        hn::StoreU(hn::Load(d4, block + (k % 4) * lanes + (k / 4) * 4), d4, out.row(c + k) + r);
    }
  }
#endif
}

template <DType kType>
HWY_INLINE void unpack_row(const float* in, int64_t n, float factor, void* out) {
  if constexpr (kType == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(out)[i] = in[i] * factor;
  } else if constexpr (kType == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = f32_to_bf16(in[i] * factor);
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = f32_to_f16(in[i] * factor);
  }
}

// Writes one row, times a factor, in the dtype of `rows`.
HWY_INLINE void unpack(const float* in, float factor, const Rows& rows, int64_t i) {
  with_dtype(rows.dtype, [&](auto type) {
    unpack_row<decltype(type)::value>(in, rows.cols, factor, rows.row(i));
  });
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
