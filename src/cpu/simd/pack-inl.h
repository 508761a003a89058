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

#if HWY_TARGET != HWY_SCALAR  // more than one lane
// Four numbers from each address, in a 128-bit block of the vector each.
template <int kBlocks>
HWY_INLINE F32Vec load_blocks(const float* const (&from)[kBlocks]) {
  const F32Tag d;
  F32Vec v = hn::LoadDup128(d, from[0]);
  for (int b = 1; b < kBlocks; ++b) {
    const auto from_block = hn::Ge(hn::Iota(d, 0.0f), hn::Set(d, 4.0f * b));
    v = hn::IfThenElse(from_block, hn::LoadDup128(d, from[b]), v);
  }
  return v;
}
#endif

// out(c, r) = in(r, c) for r < rows, zero for r up to padded(rows); c runs over padded(cols).
// A vector of rows at a time: 4 x 4 numbers are transposed within each 128-bit block.
HWY_INLINE void transpose(Matrix in, int64_t rows, int64_t cols, Matrix out) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t c = 0; c < padded(cols); ++c)
    for (int64_t r = 0; r < padded(rows); ++r) out.row(c)[r] = r < rows ? in.row(r)[c] : 0.0f;
#else
  const F32Tag d;
  constexpr int kBlocks = hn::MaxLanes(F32Tag()) / 4;
  alignas(64) static constexpr float kZeros[4] = {};  // stands in for rows past the last
  for (int64_t r = 0; r < padded(rows); r += 4 * kBlocks) {
    const bool whole = r + 4 * kBlocks <= rows;
    for (int64_t c = 0; c < padded(cols); c += 4) {
      F32Vec a[4];
      for (int i = 0; i < 4; ++i) {
        const float* from[kBlocks];
        for (int b = 0; b < kBlocks; ++b)
          from[b] = whole || r + 4 * b + i < rows ? in.row(r + 4 * b + i) + c : kZeros;
        a[i] = load_blocks(from);
      }
      const F32Vec l02 = hn::InterleaveLower(d, a[0], a[2]);
      const F32Vec l13 = hn::InterleaveLower(d, a[1], a[3]);
      const F32Vec u02 = hn::InterleaveUpper(d, a[0], a[2]);
      const F32Vec u13 = hn::InterleaveUpper(d, a[1], a[3]);
      hn::Store(hn::InterleaveLower(d, l02, l13), d, out.row(c) + r);
      hn::Store(hn::InterleaveUpper(d, l02, l13), d, out.row(c + 1) + r);
      hn::Store(hn::InterleaveLower(d, u02, u13), d, out.row(c + 2) + r);
      hn::Store(hn::InterleaveUpper(d, u02, u13), d, out.row(c + 3) + r);
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
