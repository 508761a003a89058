// The SIMD building blocks on every tier that this machine runs: the stated error of exp2, matrix
// products at odd sizes, the softmax of a row, packing and transposing of all dtypes, dropout.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "test_simd.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/simd/gemm-inl.h"
#include "cpu/simd/score-inl.h"

#ifndef TILEWISE_TEST_SIMD_ONCE
#define TILEWISE_TEST_SIMD_ONCE
#include <algorithm>
#include <memory>
#include <numeric>

#include "cpu/rows.h"
namespace tilewise::cpu {
// What the tests call, once for each tier.
template <std::int64_t kTarget>
struct Blocks {
  static void exp2(const float* in, float* out, int64_t n);
  // A row's weights in place, as softmax_lanes makes them; returns their sum.
  static float softmax(const Score& score, int64_t cols, float* s, SoftmaxState& state);
  // The sums that add_lane_sums adds, for rows of one vector each.
  static void add_sums(const float* lanes, int64_t rows, SoftmaxState* state);
  static int64_t lanes();
  static void gemm(Left a, Right b, Matrix c, Extent e, Store store);
  static void pack(const Rows& rows, Span span, Matrix out);
  static void transpose(Matrix in, int64_t rows, int64_t cols, Matrix out);
  static void unpack(const float* in, float factor, const Rows& rows, int64_t i);
  static void dropout(const Score& score, Span q, Span k, Matrix z);
};
}  // namespace tilewise::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
template <>
void Blocks<HWY_TARGET>::exp2(const float* in, float* out, int64_t n) {
  const HWY_NAMESPACE::F32Tag d;
  for (int64_t i = 0; i < n; i += hwy::HWY_NAMESPACE::Lanes(d))
    hwy::HWY_NAMESPACE::StoreU(HWY_NAMESPACE::exp2(d, hwy::HWY_NAMESPACE::LoadU(d, in + i)), d,
                               out + i);
}
template <>
float Blocks<HWY_TARGET>::softmax(const Score& score, int64_t cols, float* s, SoftmaxState& state) {
  HWY_NAMESPACE::softmax_step(score, cols, s, {state, {}, 0});
  return state.sum;
}
template <>
void Blocks<HWY_TARGET>::add_sums(const float* lane_sums, int64_t rows, SoftmaxState* state) {
  HWY_NAMESPACE::add_lane_sums(lane_sums, rows, state);
}
template <>
int64_t Blocks<HWY_TARGET>::lanes() {
  return hwy::HWY_NAMESPACE::Lanes(HWY_NAMESPACE::F32Tag());
}
template <>
void Blocks<HWY_TARGET>::gemm(Left a, Right b, Matrix c, Extent e, Store store) {
  HWY_NAMESPACE::gemm(a, b, c, e, store);
}
template <>
void Blocks<HWY_TARGET>::pack(const Rows& rows, Span span, Matrix out) {
  HWY_NAMESPACE::pack_rows(rows, span, out);
}
template <>
void Blocks<HWY_TARGET>::transpose(Matrix in, int64_t rows, int64_t cols, Matrix out) {
  HWY_NAMESPACE::transpose(in, rows, cols, out);
}
template <>
void Blocks<HWY_TARGET>::unpack(const float* in, float factor, const Rows& rows, int64_t i) {
  HWY_NAMESPACE::unpack(in, factor, rows, i);
}
template <>
void Blocks<HWY_TARGET>::dropout(const Score& score, Span q, Span k, Matrix z) {
  HWY_NAMESPACE::dropout_tile(score, q, k, z);
}
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/seed.h"

namespace tilewise::cpu {
namespace {

// A matrix with 64-byte aligned rows, filled with NaN.
struct Owned {
  Owned(int64_t rows, int64_t cols)
      : memory(rows * padded(cols) + 16, std::numeric_limits<float>::quiet_NaN()) {
    void* p = memory.data();
    std::size_t room = memory.size() * sizeof(float);
    m = {static_cast<float*>(std::align(64, 64, p, room)), padded(cols)};
  }
  std::vector<float> memory;
  Matrix m;
};

template <class Tier>
class Simd : public testing::Test {
 protected:
  using B = Blocks<Tier::value>;
  void SetUp() override {
    if (!(hwy::SupportedTargets() & Tier::value) && Tier::value != HWY_BASELINE_SCALAR)
      GTEST_SKIP() << "this processor lacks " << hwy::TargetName(Tier::value);
  }
  void fill(Matrix m, int64_t rows, int64_t cols) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < padded(cols); ++c) m.row(r)[c] = c < cols ? normal(random) : 0.0f;
  }
  std::mt19937_64 random{tilewise_test::seed()};
};

using Tiers = testing::Types<std::integral_constant<std::int64_t, HWY_BASELINE_SCALAR>,
                             std::integral_constant<std::int64_t, HWY_AVX2>,
                             std::integral_constant<std::int64_t, HWY_AVX3>>;
TYPED_TEST_SUITE(Simd, Tiers);

TYPED_TEST(Simd, Exp2HasItsStatedErrorOverItsWholeRange) {
  constexpr int64_t kBatch = 4096;
  std::vector<float> in(kBatch), out(kBatch);
  double worst = 0;
  // Every 61st float between -125 and 128, both signs: some 70 million would be all of them.
  for (float x = -125.0f; x < 128.0f;) {
    for (float& v : in) {
      v = x;
      for (int i = 0; i < 61 && x < 128.0f; ++i) x = std::nextafter(x, 1e9f);
      if (std::abs(x) < 1e-6f) x = x < 0 ? 0.0f : 1e-6f;
    }
    TestFixture::B::exp2(in.data(), out.data(), kBatch);
    for (int64_t i = 0; i < kBatch; ++i) {
      const double want = std::exp2(static_cast<double>(in[i]));
      if (in[i] < 127.9f) worst = std::max(worst, std::abs(out[i] / want - 1));
    }
  }
  EXPECT_LE(worst, 2.0e-7);
}

TYPED_TEST(Simd, Exp2AtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float in[16] = {-inf,   -1e30f, -126.0f, -125.5f, 0.0f, -0.0f, 1.0f,  2.0f,
                        127.0f, 128.0f, 200.0f,  inf,     nan,  -nan,  -1.0f, -124.0f};
  float out[16];
  TestFixture::B::exp2(in, out, 16);
  for (int i : {0, 1, 2, 3}) EXPECT_EQ(out[i], 0.0f) << in[i];
  for (int i : {4, 5, 6, 7, 8, 14, 15}) EXPECT_EQ(out[i], std::exp2(in[i])) << in[i];
  for (int i : {9, 10, 11}) EXPECT_EQ(out[i], inf) << in[i];
  for (int i : {12, 13}) EXPECT_TRUE(std::isnan(out[i]));
}

Score score_of_unit(float unit) {
  Score score;
  score.unit = unit, score.slack = 8 / unit;
  score.lowest = std::max(-125 / unit, std::numeric_limits<float>::lowest());
  return score;
}

TYPED_TEST(Simd, SoftmaxOfARow) {
  for (const float unit : {1.4426950f, 0.18f, 3e-5f})
    for (const int64_t cols : {1, 15, 16, 17, 48, 75}) {
      Owned row(1, cols), weights(1, cols);
      this->fill(row.m, 1, cols);
      for (int64_t c = 0; c < padded(cols); ++c)
        row.m.data[c] = c < cols ? row.m.data[c] * 20 / unit : kMinusInf;
      std::copy(row.m.data, row.m.data + padded(cols), weights.m.data);
      SoftmaxState state = {kMinusInf, 0};
      const double sum = TestFixture::B::softmax(score_of_unit(unit), cols, weights.m.data, state);
      double want_sum = 0;
      for (int64_t c = 0; c < padded(cols); ++c) {
        const double x = (static_cast<double>(row.m.data[c]) - state.max) * unit;
        const double want = x < -125 ? 0 : std::exp2(x);
        const double allowed = want == 0 ? 0 : (2e-7 + 1e-7 * std::abs(x)) * want;
        EXPECT_NEAR(weights.m.data[c], want, allowed) << c << " " << x;
        want_sum += want;
      }
      EXPECT_NEAR(sum, want_sum, 1e-6 * want_sum) << cols;
    }
}

TYPED_TEST(Simd, SoftmaxAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float unit : {1.0f, 1e-38f}) {  // -125 / 1e-38 is beyond f32
    Owned row(1, 16);
    std::fill(row.m.data, row.m.data + 16, -inf);
    row.m.data[3] = 0, row.m.data[4] = std::max(-200 / unit, -3e38f);
    SoftmaxState state = {0, 1};
    const float sum = TestFixture::B::softmax(score_of_unit(unit), 16, row.m.data, state);
    EXPECT_EQ(sum, 2 + row.m.data[4]);
    const int64_t zeros = std::count(row.m.data, row.m.data + 16, 0.0f);
    EXPECT_EQ(zeros, unit == 1.0f ? 15 : 14);
    EXPECT_EQ(row.m.data[3], 1);
    row.m.data[7] = nan;
    TestFixture::B::softmax(score_of_unit(unit), 16, row.m.data, state);
    EXPECT_TRUE(std::isnan(row.m.data[7]) && std::isnan(state.sum));
    EXPECT_EQ(row.m.data[3], std::exp2(unit));
  }
}

TYPED_TEST(Simd, LaneSumsOfAnyNumberOfRows) {
  const int64_t lanes = TestFixture::B::lanes();
  std::vector<float> memory(33 * 16 + 16);
  auto* const v =
      reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  for (int64_t i = 0; i < 32 * lanes; ++i) v[i] = static_cast<float>(i * i % 101);
  for (int64_t rows = 1; rows <= 32; ++rows) {
    SoftmaxState states[33];
    std::fill(states, states + 33, SoftmaxState{0, 1});
    TestFixture::B::add_sums(v, rows, states);
    for (int64_t r = 0; r < 33; ++r)
      EXPECT_EQ(states[r].sum,
                1 + (r < rows ? std::accumulate(v + r * lanes, v + (r + 1) * lanes, 0.0f) : 0));
  }
}

TYPED_TEST(Simd, GemmOfAnySizeSetsAndAdds) {
  for (int64_t rows : {1, 2, 3, 7, 8, 9, 31, 32})
    for (int64_t cols : {1, 16, 17, 48, 63, 80})
      for (int64_t depth : {1, 5, 64, 65, 130}) {
        Owned a(rows, depth), at(depth, rows), b(depth, cols), c(rows, cols), d(rows, cols);
        this->fill(a.m, rows, depth);
        this->fill(b.m, depth, cols);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t k = 0; k < depth; ++k) at.m.row(k)[r] = a.m.row(r)[k];
        const Extent e = {rows, padded(cols), depth};
        TestFixture::B::gemm(left(a.m), right(b.m), c.m, e, Store::kSet);
        TestFixture::B::gemm(left_transposed(at.m), right(b.m), d.m, e, Store::kSet);
        TestFixture::B::gemm(left(a.m), right(b.m), d.m, e, Store::kAdd);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t j = 0; j < cols; ++j) {
            double want = 0, size = 0;
            for (int64_t k = 0; k < depth; ++k) {
              want += static_cast<double>(a.m.row(r)[k]) * b.m.row(k)[j];
              size += std::abs(static_cast<double>(a.m.row(r)[k]) * b.m.row(k)[j]);
            }
            // Worst case: a rounding for each step of a chain and for each chain that is added.
            const double bound = (min_of<int64_t>(depth, 64) + depth / 64 + 2) * 0x1p-24 * size;
            ASSERT_NEAR(c.m.row(r)[j], want, bound) << rows << " " << cols << " " << depth;
            ASSERT_NEAR(d.m.row(r)[j], 2 * want, 3 * bound) << rows << " " << cols;
          }
      }
}

// The numbers of a product must not depend on which block a row falls into.
TYPED_TEST(Simd, GemmRowsAreBitwiseTheSameAlone) {
  constexpr int64_t kRows = 29, kCols = 80, kDepth = 100;
  Owned a(kRows, kDepth), b(kDepth, kCols), all(kRows, kCols), one(1, kCols);
  this->fill(a.m, kRows, kDepth);
  this->fill(b.m, kDepth, kCols);
  TestFixture::B::gemm(left(a.m), right(b.m), all.m, {kRows, kCols, kDepth}, Store::kSet);
  for (int64_t r = 0; r < kRows; ++r) {
    TestFixture::B::gemm(left(a.m.from_row(r)), right(b.m), one.m, {1, kCols, kDepth}, Store::kSet);
    for (int64_t c = 0; c < kCols; ++c) ASSERT_EQ(one.m.row(0)[c], all.m.row(r)[c]);
  }
}

TYPED_TEST(Simd, PackConvertsPadsAndTransposes) {
  std::uniform_int_distribution<int> bits(0, 65535);
  for (DType dtype : {DType::kF16, DType::kBF16})
    for (int64_t cols : {1, 7, 16, 33, 64})
      for (int64_t rows : {1, 4, 5, 18}) {
        const int64_t stride = cols + 3;
        std::vector<std::uint16_t> in(rows * stride);
        for (auto& h : in) h = static_cast<std::uint16_t>(bits(this->random));
        Owned packed(rows, cols), turned(padded(cols), rows);
        const Rows view = {reinterpret_cast<std::byte*>(in.data()), dtype, stride, cols};
        TestFixture::B::pack(view, {0, rows}, packed.m);
        TestFixture::B::transpose(packed.m, rows, cols, turned.m);
        for (int64_t r = 0; r < padded(rows); ++r)
          for (int64_t c = 0; c < padded(cols); ++c) {
            const bool real = r < rows && c < cols;
            const std::uint16_t h = real ? in[r * stride + c] : 0;
            const float want = dtype == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
            if (std::isnan(want)) {
              ASSERT_TRUE(std::isnan(packed.m.row(r)[c]) && std::isnan(turned.m.row(c)[r]));
              continue;
            }
            if (r < rows) {
              ASSERT_EQ(packed.m.row(r)[c], want);
            }
            ASSERT_EQ(turned.m.row(c)[r], want);
          }
      }
}

TYPED_TEST(Simd, UnpackRoundsToNearestEven) {
  constexpr int64_t kCols = 1000;
  std::vector<float> in(kCols);
  std::normal_distribution<float> normal;
  for (float& x : in) x = normal(this->random) * std::exp2(std::floor(8 * normal(this->random)));
  std::vector<std::uint16_t> out(kCols);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Rows view = {reinterpret_cast<std::byte*>(out.data()), dtype, kCols, kCols};
    TestFixture::B::unpack(in.data(), 1.5f, view, 0);
    for (int64_t i = 0; i < kCols; ++i)
      ASSERT_EQ(out[i],
                dtype == DType::kF16 ? f32_to_f16(in[i] * 1.5f) : f32_to_bf16(in[i] * 1.5f));
  }
}

TYPED_TEST(Simd, DropoutTileHoldsTheRuleOfEveryElement) {
  Score score;
  score.dropout = {dropout_key(7, 9), dropout_threshold(0.3f)};
  score.keep_scale = dropout_scale(0.3f);
  score.batch = 3;
  score.head = 5;
  Owned z(37, 50);
  TestFixture::B::dropout(score, {16, 53}, {32, 82}, z.m);
  for (int64_t i = 0; i < 37; ++i)
    for (int64_t j = 0; j < 50; ++j)
      ASSERT_EQ(z.m.row(i)[j], dropout_keep(score.dropout, 3, 5, static_cast<std::uint32_t>(16 + i),
                                            static_cast<std::uint32_t>(32 + j))
                                   ? score.keep_scale
                                   : 0.0f);
}

}  // namespace
}  // namespace tilewise::cpu
#endif  // HWY_ONCE
