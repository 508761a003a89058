// The one matrix product of the CPU backend: C = A B or C += A B, f32, for tiles that sit in L1/L2.
//
// A block of kRows x kVecs vectors of C stays in registers while the depth streams past: each step
// loads kVecs vectors of a row of B and broadcasts kRows numbers of A. A is addressed by two
// strides, so the transposed products of the backward (dV = P^T dO, dK = dS^T Q) are the same code.
// AVX-512: 8 x 3 = 24 of 32 registers, 11 loads for 24 FMAs, so the two FMA ports decide. Machines
// with 16 registers: 4 x 3 = 12, 7 loads for 12 FMAs.
//
// Every element of C is a chain of FMAs in ascending depth, begun anew and added to C every
// kChainDepth steps: a long chain of like terms drifts (constant rows, D = 512), a short one costs
// one more pass over C in kChainDepth. The order doesn't depend on where a row or column falls.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)  // include guard per target
#ifdef TILEWISE_CPU_SIMD_GEMM_INL_H_
#undef TILEWISE_CPU_SIMD_GEMM_INL_H_
#else
#define TILEWISE_CPU_SIMD_GEMM_INL_H_
#endif
// clang-format on

#include <cstdint>

#include "cpu/simd/matrix.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kGemmRows = HWY_MAX_BYTES >= 64 ? 8 : 4;
inline constexpr int kGemmVecs = 3;
inline constexpr int64_t kChainDepth = 64;

// How one step of the depth adds to C.
struct MultiplyAdd {
  static HWY_INLINE hn::Vec<hn::ScalableTag<float>> step(hn::Vec<hn::ScalableTag<float>> a,
                                                         hn::Vec<hn::ScalableTag<float>> b,
                                                         hn::Vec<hn::ScalableTag<float>> c) {
    return hn::MulAdd(a, b, c);
  }
};

template <class Step, int kRows, int kVecs>
HWY_INLINE void gemm_block(Left a, Right b, Matrix c, int64_t depth, Store store) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = hn::Lanes(d);
  V acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    V row[kVecs];
    for (int v = 0; v < kVecs; ++v) row[v] = hn::Load(d, b.data + k * b.stride + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(d, a.data[r * a.row_stride + k * a.depth_stride]);
      for (int v = 0; v < kVecs; ++v) acc[r][v] = Step::step(x, row[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) {
      float* out = c.row(r) + v * lanes;
      hn::Store(store == Store::kAdd ? hn::Add(hn::Load(d, out), acc[r][v]) : acc[r][v], d, out);
    }
}

// All rows of one column block; the rows that are left over run in halves.
template <class Step, int kRows, int kVecs>
HWY_INLINE void gemm_rows(Left a, Right b, Matrix c, Extent e, Store store) {
  int64_t r = 0;
  for (; r + kRows <= e.rows; r += kRows)
    gemm_block<Step, kRows, kVecs>(a.from_row(r), b, c.from_row(r), e.depth, store);
  if constexpr (kRows > 1) {
    const Extent rest = {e.rows - r, e.cols, e.depth};
    if (rest.rows > 0)
      gemm_rows<Step, kRows / 2, kVecs>(a.from_row(r), b, c.from_row(r), rest, store);
  }
}

// One chain, in column blocks of kVecs vectors and narrower ones for what is left over; four
// vectors go as two and two, since one alone is bound by its loads. B and C start on vector
// boundaries and e.cols is a multiple of kPad, so there are no column tails.
template <class Step, int kVecs>
HWY_INLINE void gemm_chain(Left a, Right b, Matrix c, Extent e, Store store) {
  const int64_t lanes = hn::Lanes(hn::ScalableTag<float>()), block = kVecs * lanes;
  int64_t col = 0;
  for (; col + block <= e.cols && (kVecs < 3 || e.cols - col != 4 * lanes); col += block)
    gemm_rows<Step, kGemmRows, kVecs>(a, b.from_col(col), c.from_col(col), e, store);
  if constexpr (kVecs > 1) {
    const Extent rest = {e.rows, e.cols - col, e.depth};
    if (rest.cols > 0)
      gemm_chain<Step, kVecs - 1>(a, b.from_col(col), c.from_col(col), rest, store);
  }
}

template <class Step = MultiplyAdd>
HWY_INLINE void gemm(Left a, Right b, Matrix c, Extent e, Store store) {
  for (int64_t k = 0; k < e.depth || k == 0; k += kChainDepth) {
    const int64_t depth = min_of(kChainDepth, e.depth - k);
    gemm_chain<Step, kGemmVecs>(a.from_depth(k), b.from_depth(k), c, {e.rows, e.cols, depth},
                                store);
    store = Store::kAdd;
  }
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
