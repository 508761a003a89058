// What the products of a kernel are made of. F32Operands converts everything to f32 and multiplies
// by FMA; every tier has it. PairOperands keeps bf16 as it is, two numbers that are next to each
// other in depth to a 32-bit unit, as the bf16 dot product instructions want them: half the memory
// and, on processors that issue these as often as FMAs, twice the rate. Both lay their operands out
// as a Matrix of 32-bit units, so transposing and blocking are the same code.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_OPERANDS_INL_H_
#undef TILEWISE_CPU_SIMD_OPERANDS_INL_H_
#else
#define TILEWISE_CPU_SIMD_OPERANDS_INL_H_
#endif
// clang-format on

#include "cpu/simd/gemm-inl.h"
#include "cpu/simd/pack-inl.h"
#include "cpu/simd/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// True if every number of the tile is finite: 0 * x is NaN for inf and NaN.
HWY_INLINE bool all_finite(Matrix m, int64_t rows, int64_t cols) {
  const F32Tag d;
  const F32Vec zero = hn::Zero(d);
  F32Vec even = zero, odd = zero;
  for (int64_t r = 0; r < rows; r += 2) {
    const float* const a = m.row(r);
    const float* const b = m.row(min_of(r + 1, rows - 1));
    for (int64_t c = 0; c < padded(cols); c += hn::Lanes(d)) {
      even = hn::MulAdd(zero, hn::Load(d, a + c), even);
      odd = hn::MulAdd(zero, hn::Load(d, b + c), odd);
    }
  }
  return hn::AllTrue(d, hn::Eq(hn::Add(even, odd), zero));
}

// Calls visit(rows, first), with 16 rows of `span` at a time: what is packed is worked on while it
// is in L1.
template <class Visit>
HWY_INLINE void by_16_rows(Span span, Visit&& visit) {
  for (int64_t i = span.begin; i < span.end; i += 16)
    visit(Span{i, min_of(i + 16, span.end)}, i - span.begin);
}

struct F32Operands {
  static constexpr int kParts = 0;
  // Lives as long as a thread multiplies.
  struct Session {};

  // Rows, with the depth along them.
  static HWY_INLINE void rows(const Rows& in, Span span, Matrix out) { pack_rows(in, span, out); }
  // The same rows as columns, D x rows; they pass through `scratch`.
  static HWY_INLINE void columns(const Rows& in, Span span, Matrix scratch, Matrix out) {
    by_16_rows(span, [&](Span few, int64_t first) {
      rows(in, few, scratch);
      transpose(scratch, few.size(), in.cols, out.from_col(first));
    });
  }
  // Rows, with the depth across them; returns whether all numbers are finite.
  static HWY_INLINE bool values(const Rows& in, Span span, Matrix out) {
    bool finite = true;
    by_16_rows(span, [&](Span few, int64_t first) {
      pack_rows(in, few, out.from_row(first));
      finite &= all_finite(out.from_row(first), few.size(), in.cols);
    });
    return finite;
  }
  static HWY_INLINE Matrix values_from(Matrix values, int64_t row) { return values.from_row(row); }
  // The values of rows that `rows` has packed; may be the same.
  static HWY_INLINE Matrix values_of(const Rows&, Span, Matrix packed, Matrix) { return packed; }
  // The transposed of f32 weights as a left operand; `spare` is room for it, of the same size.
  static HWY_INLINE Left transposed(Matrix weights, Extent, const Matrix (&)[2]) {
    return left_transposed(weights);
  }
  // Turns a row of weights into an operand, in place.
  static HWY_INLINE void weights(float*, int64_t) {}
  // A step of the softmax, which leaves the weights as an operand, in place.
  static HWY_INLINE F32Vec softmax(const Score& score, int64_t cols, float* s,
                                   const SoftmaxRow& row) {
    return softmax_lanes(score, cols, s, row);
  }
  static HWY_INLINE void multiply(Left a, Right b, Matrix c, Extent e, Store store) {
    gemm(a, b, c, e, store);
  }
};

#if TILEWISE_BF16_DOT

struct PairMultiplyAdd {
  static HWY_INLINE F32Vec step(F32Vec a, F32Vec b, F32Vec c) {
    return F32Vec{_mm512_dpbf16_ps(c.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
  }
};

// 16 bf16 numbers of a row from `at`, as lanes of 32 bits; those past `cols` are 0.
HWY_INLINE __m512i bf16_lanes(const uint16_t* row, int64_t at, int64_t cols) {
  const int64_t left = cols - at;
  const __mmask16 mask = left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1;
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row + at));
}

// Depth is padded with zeros to this many pairs, an AMX tile.
inline constexpr int64_t kDepthPad = 16;

// Zeros after the pairs of `used` rows of values: a product may begin inside the tile, at a
// multiple of 16 numbers, and run past its end.
HWY_INLINE void zero_value_rows(Matrix values, int64_t used, int64_t cols) {
  const int64_t pairs = ceil_div(used, int64_t{2});
  const int64_t end = round_up(pairs, kDepthPad) + (used > 16 ? kDepthPad : 0);
  zero_rows(values.from_row(pairs), end - pairs, cols);
}

// In softmax_bf16-inl.h.
template <int kParts>
void convert_weights(const float* s, int64_t cols, float* out, int64_t part);
template <int kParts>
F32Vec softmax_lanes_to(const Score& score, int64_t cols, const float* s, const SoftmaxRow& row,
                        float* out, int64_t part);

struct PairOperands {
  static constexpr int kParts = 1;
  struct Session {};

  static HWY_INLINE void rows(const Rows& in, Span span, Matrix out) {
    for (int64_t i = span.begin; i < span.end; ++i) {
      float* const to = out.row(i - span.begin);
      std::memcpy(to, in.row(i), in.cols * sizeof(uint16_t));
      const int64_t bytes = 4 * padded(ceil_div(in.cols, int64_t{2}));
      std::memset(reinterpret_cast<std::byte*>(to) + in.cols * sizeof(uint16_t), 0,
                  bytes - in.cols * sizeof(uint16_t));
    }
  }
  static HWY_INLINE void columns(const Rows& in, Span span, Matrix scratch, Matrix out) {
    const Matrix packed = {scratch.data, pairs_of(in.cols)};
    by_16_rows(span, [&](Span few, int64_t first) {
      rows(in, few, packed);
      transpose(packed, few.size(), packed.stride, out.from_col(first));
    });
  }
  // Rows 2i and 2i + 1 become row i of pairs.
  static HWY_INLINE bool values(const Rows& in, Span span, Matrix out) {
    const __m512i exponent = _mm512_set1_epi32(0x7F807F80);
    __mmask32 infinite = 0;
    for (int64_t i = 0; i < span.size(); i += 2) {
      const auto* const even = static_cast<const uint16_t*>(in.row(span.begin + i));
      const bool last = i + 1 == span.size();
      const auto* const odd =
          last ? even : static_cast<const uint16_t*>(in.row(span.begin + i + 1));
      float* const to = out.row(i / 2);
      for (int64_t c = 0; c < padded(in.cols); c += 16) {
        const __m512i low = bf16_lanes(even, c, in.cols);
        const __m512i high = bf16_lanes(odd, c, last ? 0 : in.cols);
        const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
        infinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs, exponent), exponent);
        _mm512_store_si512(to + c, pairs);
      }
    }
    zero_value_rows(out, span.size(), in.cols);
    return infinite == 0;
  }
  static HWY_INLINE Matrix values_from(Matrix values, int64_t row) {
    return values.from_row(row / 2);
  }
  static HWY_INLINE Matrix values_of(const Rows& in, Span span, Matrix, Matrix room) {
    values(in, span, room);
    return room;
  }
  static HWY_INLINE Left transposed(Matrix weights, Extent e, const Matrix (&room)[2]) {
    pair_rows(weights, e, room[0]);
    return left_transposed(room[0]);
  }
  // Rows 2i and 2i + 1 of f32 numbers become row i of pairs.
  static HWY_INLINE void pair_rows(Matrix in, Extent e, Matrix out) {
    for (int64_t i = 0; i < e.rows; i += 2)
      for (int64_t c = 0; c < padded(e.cols); c += 16) {
        const __m512 low = _mm512_load_ps(in.row(i) + c);
        const __m512 high =
            i + 1 < e.rows ? _mm512_load_ps(in.row(i + 1) + c) : _mm512_setzero_ps();
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);  // low's 16, then high's 16
        const __m512i even = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
        const __m512i odd = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
        _mm512_store_si512(out.row(i / 2) + c, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
  }
  static HWY_INLINE void weights(float* s, int64_t cols) { convert_weights<1>(s, cols, s, 0); }
  static HWY_INLINE F32Vec softmax(const Score& score, int64_t cols, float* s,
                                   const SoftmaxRow& row) {
    return softmax_lanes_to<1>(score, cols, s, row, s, 0);
  }
  static HWY_INLINE void multiply(Left a, Right b, Matrix c, Extent e, Store store) {
    gemm<PairMultiplyAdd>(a, b, c, {e.rows, e.cols, ceil_div(e.depth, int64_t{2})}, store);
  }
};

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
