// core/mask.h and core/schedule.h against brute force over a predicate written from the words of
// the documentation.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/schedule.h"
#include "support/seed.h"

namespace {

using namespace tilewise;

// "off = Sk - Sq (bottom-right) or 0 (top-left). Causal: j <= i + off. Window, inclusive:
// i + off - left <= j <= i + off + right; -1 means unbounded. They intersect."
bool sees(const MaskShape& m, int64_t i, int64_t j) {
  if (i < 0 || j < 0 || i >= m.seq_q || j >= m.seq_kv) return false;
  const int64_t diagonal = m.bottom_right ? i + m.seq_kv - m.seq_q : i;
  return !(m.causal && j > diagonal) && !(m.left >= 0 && j < diagonal - m.left) &&
         !(m.right >= 0 && j > diagonal + m.right);
}

Span brute_keys(const MaskShape& m, Span q) {
  Span s{m.seq_kv, 0};
  for (int64_t i = q.begin; i < q.end; ++i)
    for (int64_t j = 0; j < m.seq_kv; ++j)
      if (sees(m, i, j)) s = {min_of(s.begin, j), max_of(s.end, j + 1)};
  return s;
}

Span brute_queries(const MaskShape& m, Span k) {
  Span s{m.seq_q, 0};
  for (int64_t i = 0; i < m.seq_q; ++i)
    for (int64_t j = k.begin; j < k.end; ++j)
      if (sees(m, i, j)) s = {min_of(s.begin, i), max_of(s.end, i + 1)};
  return s;
}

std::string words(const MaskShape& m) {
  return "Sq " + std::to_string(m.seq_q) + " Sk " + std::to_string(m.seq_kv) + " causal " +
         std::to_string(m.causal) + " window " + std::to_string(m.left) + "," +
         std::to_string(m.right) + (m.bottom_right ? " bottom-right" : " top-left");
}

// A range that is too wide costs time, one that is too narrow is wrong. Both are held exactly.
void check_span(const Span& got, const Span& want) {
  if (want.empty()) {
    EXPECT_TRUE(got.empty()) << got.begin << ".." << got.end;
  } else {
    EXPECT_EQ(got.begin, want.begin);
    EXPECT_EQ(got.end, want.end);
  }
}

void check_tile(const MaskShape& m, const BandMask& band, Span q, Span k) {
  bool any = false, all = true;
  for (int64_t i = q.begin; i < q.end; ++i)
    for (int64_t j = k.begin; j < k.end; ++j) {
      any = any || sees(m, i, j);
      all = all && sees(m, i, j);
    }
  const TileClass want = !any ? TileClass::kEmpty : all ? TileClass::kFull : TileClass::kPartial;
  const TileClass got = band.classify(q, k);
  EXPECT_EQ(static_cast<int>(got), static_cast<int>(want))
      << "q " << q.begin << ".." << q.end << " k " << k.begin << ".." << k.end;
}

void check_mask(const MaskShape& m, const TileGrid& grid) {
  SCOPED_TRACE(words(m));
  const BandMask& band = grid.mask;
  for (int64_t i = -1; i <= m.seq_q; ++i)
    for (int64_t j = -1; j <= m.seq_kv; ++j)
      ASSERT_EQ(band.keep(i, j), sees(m, i, j)) << i << " " << j;
  for (int64_t i = 0; i < m.seq_q; ++i) check_span(band.row(i), brute_keys(m, {i, i + 1}));
  std::vector<int> by_q(m.seq_q * m.seq_kv), by_kv(by_q);
  for (int64_t t = 0; t < grid.q_tiles(); ++t) {
    const Span q = grid.q_span(t);
    check_span(band.keys_of(q), brute_keys(m, q));
    for (int64_t u = 0; u < grid.kv_tiles(); ++u) check_tile(m, band, q, grid.kv_span(u));
    for_visible_kv(grid, q, [&](Span k, TileClass) {
      for (int64_t i = q.begin; i < q.end; ++i)
        for (int64_t j = k.begin; j < k.end; ++j) ++by_q[i * m.seq_kv + j];
    });
  }
  for (int64_t u = 0; u < grid.kv_tiles(); ++u) {
    const Span k = grid.kv_span(u);
    check_span(band.queries_of(k), brute_queries(m, k));
    for_visible_q(grid, k, [&](Span q, TileClass) {
      for (int64_t i = q.begin; i < q.end; ++i)
        for (int64_t j = k.begin; j < k.end; ++j) ++by_kv[i * m.seq_kv + j];
    });
  }
  // Both walks visit every visible pair once, and no pair twice.
  for (std::size_t at = 0; at < by_q.size(); ++at) {
    const int64_t i = static_cast<int64_t>(at) / m.seq_kv, j = static_cast<int64_t>(at) % m.seq_kv;
    ASSERT_LE(by_q[at], 1);
    ASSERT_EQ(by_q[at], by_kv[at]);
    ASSERT_TRUE(by_q[at] == 1 || !sees(m, i, j));
  }
}

TEST(Mask, RangesAndClassesEqualBruteForce) {
  std::mt19937_64 random(tilewise_test::seed());
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 1500 && !testing::Test::HasFailure(); ++round) {
    const MaskShape m{pick(0, 24),  pick(0, 24),  pick(0, 2) == 0,
                      pick(-1, 14), pick(-1, 14), pick(0, 1) == 1};
    check_mask(m, {make_band(m), pick(1, 9), pick(1, 9)});
  }
}

TEST(Mask, WindowsFarBeyondTheSequenceAreUnbounded) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  for (const int64_t wide : {int64_t{1} << 32, int64_t{1} << 60, huge - 1, huge})
    for (const bool causal : {false, true})
      for (const bool bottom_right : {false, true}) {
        const MaskShape wide_shape{5, 9, causal, wide, wide, bottom_right};
        const MaskShape open{5, 9, causal, -1, -1, bottom_right};
        const BandMask band = make_band(wide_shape);
        for (int64_t i = 0; i < 5; ++i)
          for (int64_t j = 0; j < 9; ++j) ASSERT_EQ(band.keep(i, j), sees(open, i, j)) << wide;
      }
}

TEST(Mask, SequencesBeyond32Bits) {
  const int64_t n = int64_t{5} << 32;
  const BandMask causal = make_band({n, n + 3, true, 100, -1, true});
  EXPECT_EQ(causal.keys_of({n - 64, n}).begin, n - 64 + 3 - 100);
  EXPECT_EQ(causal.keys_of({n - 64, n}).end, n + 3);
  EXPECT_EQ(causal.queries_of({n, n + 1}).begin, n - 3);
  EXPECT_EQ(static_cast<int>(causal.classify({n - 64, n}, {0, 128})),
            static_cast<int>(TileClass::kEmpty));
}

}  // namespace
