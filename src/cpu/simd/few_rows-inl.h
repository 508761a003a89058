// The two products of attention for a few queries, with K and V where the caller has them: S = Q
// K^T by dot products and O += P V row by row. Each number of K and V is loaded and converted in
// registers, used for all the queries of a block, and never packed: with few queries there is
// nothing that would pay for it.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_FEW_ROWS_INL_H_
#undef TILEWISE_CPU_SIMD_FEW_ROWS_INL_H_
#else
#define TILEWISE_CPU_SIMD_FEW_ROWS_INL_H_
#endif
// clang-format on

#include "cpu/simd/lane_sums-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whole vectors make up a row, so it can be read where it lies.
HWY_INLINE bool whole_vectors(int64_t cols) {
  return cols % static_cast<int64_t>(hn::Lanes(F32Tag())) == 0;
}

// How far ahead of a row its memory is asked for, in bytes: the hardware's prefetchers stop at page
// boundaries, and the rows of a few heads fill a page.
HWY_INLINE int64_t bytes_ahead(const Rows& rows) {
  constexpr int64_t kAhead = 8192;
  const int64_t stride = max_of<int64_t>(1, rows.stride * size_of(rows.dtype));
  return stride * std::clamp<int64_t>(kAhead / stride, 16 / size_of(rows.dtype), 16);
}

// Vector i of a row from `row` on. With each line's first one, the line `ahead` of it is asked for:
// one beside each few instructions, since all of a row's at once would wait for each other.
template <DType kType>
HWY_INLINE F32Vec stream_f32(const std::byte* row, int64_t i, int64_t ahead) {
  constexpr int64_t kLine = 64, kBytes = hn::MaxLanes(F32Tag()) * size_of(kType);
  if (i * kBytes % kLine == 0) hwy::Prefetch(row + i * kBytes + ahead);
  return load_f32<kType>(row + i * kBytes, 0);
}

// S(r, j) for kRows queries and keys `key` ... `key` + 4; keys past `last` repeat it.
template <DType kType, int kRows>
HWY_INLINE void dot_block(Matrix q, const Rows& k, int64_t key, int64_t last, float* s,
                          int64_t s_stride) {
  const F32Tag d;
  const int64_t ahead = bytes_ahead(k);
  const std::byte* rows[4];
  for (int j = 0; j < 4; ++j) rows[j] = static_cast<const std::byte*>(k.row(min_of(key + j, last)));
  F32Vec acc[kRows][4];
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 4; ++j) acc[r][j] = hn::Zero(d);
  const int64_t lanes = hn::Lanes(d), vecs = k.cols / lanes;
  for (int64_t i = 0; i < vecs; ++i) {
    F32Vec x[4];
    for (int j = 0; j < 4; ++j) x[j] = stream_f32<kType>(rows[j], i, ahead);
    for (int r = 0; r < kRows; ++r) {
      const F32Vec a = hn::Load(d, q.row(r) + i * lanes);
      for (int j = 0; j < 4; ++j) acc[r][j] = hn::MulAdd(a, x[j], acc[r][j]);
    }
  }
  if constexpr (kRows == 4)
    sum_lanes(acc, s, s_stride);
  else
    for (int r = 0; r < kRows; ++r) sum_lanes(acc[r], s + r * s_stride);
}

// S = Q K^T for keys `at`; S has room for a multiple of 4 columns.
HWY_INLINE void few_scores(Matrix q, int64_t queries, const Rows& k, Span at, Matrix s) {
  with_dtype(k.dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    for (int64_t j = at.begin; j < at.end; j += 4) {
      float* const out = s.data + (j - at.begin);
      int64_t r = 0;
      for (; r + 4 <= queries; r += 4)
        dot_block<kType, 4>(q.from_row(r), k, j, at.end - 1, out + r * s.stride, s.stride);
      for (; r < queries; ++r)
        dot_block<kType, 1>(q.from_row(r), k, j, at.end - 1, out + r * s.stride, s.stride);
    }
  });
}

// O(r, col ...) += P(r) V for kRows queries and kVecs vectors of columns.
template <DType kType, int kRows, int kVecs>
HWY_INLINE void value_block(Matrix p, const Rows& v, Span at, int64_t col, Matrix o) {
  const F32Tag d;
  const int64_t ahead = bytes_ahead(v), step = v.stride * size_of(kType);
  const int64_t lanes = hn::Lanes(d);
  const auto* row = static_cast<const std::byte*>(v.row(at.begin)) + col * size_of(kType);
  const float* weights = p.data;  // of a key, a row of P apart
  F32Vec acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVecs; ++i) acc[r][i] = hn::Zero(d);
  for (int64_t j = 0; j < at.size(); ++j, row += step, ++weights) {
    F32Vec weight[kRows];
    for (int r = 0; r < kRows; ++r) weight[r] = hn::Set(d, weights[r * p.stride]);
    for (int i = 0; i < kVecs; ++i) {
      const F32Vec x = stream_f32<kType>(row, i, ahead);
      for (int r = 0; r < kRows; ++r) acc[r][i] = hn::MulAdd(weight[r], x, acc[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVecs; ++i) {
      float* const out = o.row(r) + col + i * lanes;
      hn::Store(hn::Add(hn::Load(d, out), acc[r][i]), d, out);
    }
}

template <DType kType, int kVecs>
HWY_INLINE void value_columns(Matrix p, int64_t queries, const Rows& v, Span at, int64_t col,
                              Matrix o) {
  const int64_t block = kVecs * hn::Lanes(F32Tag());
  for (; col + block <= v.cols; col += block) {
    int64_t r = 0;
    if constexpr (kVecs > 1)
      for (; r + 4 <= queries; r += 4)
        for (int64_t half = col; half < col + block; half += block / 2)
          value_block<kType, 4, kVecs / 2>(p.from_row(r), v, at, half, o.from_row(r));
    for (; r + 2 <= queries; r += 2)
      value_block<kType, 2, kVecs>(p.from_row(r), v, at, col, o.from_row(r));
    if (r < queries) value_block<kType, 1, kVecs>(p.from_row(r), v, at, col, o.from_row(r));
  }
  if constexpr (kVecs > 1) value_columns<kType, kVecs / 2>(p, queries, v, at, col, o);
}

// O += P V for keys `at`, whose weights are the columns of P. Four rows of 4 vectors or two of 8
// (with 16 registers: half of that) stay in registers while the keys stream past.
HWY_INLINE void few_values(Matrix p, int64_t queries, const Rows& v, Span at, Matrix o) {
  constexpr int kVecs = HWY_MAX_BYTES >= 64 ? 8 : 4;
  with_dtype(v.dtype, [&](auto type) {
    value_columns<decltype(type)::value, kVecs>(p, queries, v, at, 0, o);
  });
}

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
