// Numbers as sums of bf16 parts, so that products of f16 and f32 can run on bf16 units. A part is
// the leading 8 bits of what the parts before it left: two hold an f16 exactly, three an f32. Which
// parts of two numbers are multiplied is said where they meet (PartPairs in amx-inl.h).
//
// Each part is laid out as PairOperands lay out bf16 (pairs along the depth, padded to whole AMX
// tiles); the parts of a matrix lie `Matrix::part` apart. inf and NaN have no parts: whoever splits
// makes sure that all numbers are finite.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_PARTS_INL_H_
#undef TILEWISE_CPU_SIMD_PARTS_INL_H_
#else
#define TILEWISE_CPU_SIMD_PARTS_INL_H_
#endif
// clang-format on

#include "cpu/simd/operands-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

#if TILEWISE_BF16_DOT

// Takes the leading part off 16 numbers; returns it as the upper halves of the lanes.
HWY_INLINE __m512i take_part(__m512& x) {
  const __m512i part =
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
  x = _mm512_sub_ps(x, _mm512_castsi512_ps(part));
  return part;
}

// 32 parts that follow each other, 16 to a vector, become 16 pairs.
HWY_INLINE __m512i pairs_along(__m512i first, __m512i second) {
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(kUpper), second);
}

// One row of f32 numbers, zeros up to a multiple of 32, as its parts.
template <int kParts>
HWY_INLINE void split_row(const float* in, int64_t cols, float* out, int64_t part) {
  for (int64_t c = 0; c < cols; c += 32) {
    __m512 x = _mm512_load_ps(in + c), y = _mm512_load_ps(in + c + 16);
    for (int p = 0; p < kParts; ++p) {
      const __m512i a = take_part(x), b = take_part(y);
      _mm512_store_si512(out + p * part + c / 2, pairs_along(a, b));
    }
  }
}

// Two rows, the pairs across them.
template <int kParts>
HWY_INLINE void split_row_pair(const float* even, const float* odd, int64_t cols, float* out,
                               int64_t part) {
  for (int64_t c = 0; c < padded(cols); c += 16) {
    __m512 x = _mm512_load_ps(even + c), y = _mm512_load_ps(odd + c);
    for (int p = 0; p < kParts; ++p) {
      const __m512i a = take_part(x), b = take_part(y);
      _mm512_store_si512(out + p * part + c, _mm512_or_si512(_mm512_srli_epi32(a, 16), b));
    }
  }
}

// A row of the caller's as f32, zeros up to a multiple of 32.
struct alignas(64) WideRow {
  float data[kMaxHeadDim + 32];
  void load(const Rows& rows, int64_t i) {
    pack_rows(rows, {i, i + 1}, {data, kMaxHeadDim});
    zero_rows({data + padded(rows.cols), kPad}, 1, kPad);
  }
};

template <int kPartCount>
struct PartOperands {
  static constexpr int kParts = kPartCount;
  static HWY_INLINE void rows(const Rows& in, Span span, Matrix out) {
    WideRow row;
    for (int64_t i = span.begin; i < span.end; ++i) {
      row.load(in, i);
      split_row<kParts>(row.data, in.cols, out.row(i - span.begin), out.part);
    }
  }
  // `scratch` has room for the rows, whose parts follow each other there.
  static HWY_INLINE void columns(const Rows& in, Span span, Matrix scratch, Matrix out) {
    const int64_t pairs = pairs_of(in.cols);
    const Matrix packed = {scratch.data, kParts * pairs, pairs};
    rows(in, span, packed);
    for (int p = 0; p < kParts; ++p)
      transpose(packed.at_part(p), span.size(), pairs, out.at_part(p));
  }
  static HWY_INLINE bool values(const Rows& in, Span span, Matrix out) {
    WideRow even, odd;
    for (int64_t i = 0; i < span.size(); i += 2) {
      even.load(in, span.begin + i);
      if (i + 1 < span.size())
        odd.load(in, span.begin + i + 1);
      else
        std::memset(odd.data, 0, sizeof odd.data);
      split_row_pair<kParts>(even.data, odd.data, in.cols, out.row(i / 2), out.part);
    }
    for (int p = 0; p < kParts; ++p) zero_value_rows(out.at_part(p), span.size(), in.cols);
    return true;
  }
  static HWY_INLINE Matrix values_from(Matrix values, int64_t row) {
    return values.from_row(row / 2);
  }
};

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
