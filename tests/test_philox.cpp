// Philox4x32-10 against the known answers of Random123, and the map from (b, h, i, j) to bits.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "core/philox.h"

namespace {

using namespace tilewise;
using Words = std::array<std::uint32_t, 4>;

Words run(Words c, PhiloxKey key) {
  const Philox4 r = philox4x32_10({{c[0], c[1], c[2], c[3]}}, key);
  return {r.w[0], r.w[1], r.w[2], r.w[3]};
}

TEST(Philox, KnownAnswers) {
  constexpr std::uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(run({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(run({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(run({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Each element of a block has 16 bits of its own: no call and no part of a call is used twice.
TEST(Dropout, EveryPlaceOfABlockHasItsOwnBits) {
  std::set<std::array<std::uint32_t, 3>> places;
  for (std::uint32_t i = 0; i < 16; ++i)
    for (std::uint32_t j = 0; j < 16; ++j) {
      const std::uint32_t lane = (i % 8) * 4 + (j % 8) / 2;
      // A call whose eight halfwords carry their own number tells which one (i, j) takes.
      const Philox4 labels{{0x00010000u, 0x00030002u, 0x00050004u, 0x00070006u}};
      places.insert({lane, dropout_bits(labels, i, j), 0});
    }
  EXPECT_EQ(places.size(), 256u);
}

TEST(Dropout, BlocksHeadsAndBatchesDiffer) {
  const PhiloxKey key = dropout_key(7, 9);
  std::set<Words> calls;
  int n = 0;
  for (std::uint32_t b = 0; b < 2; ++b)
    for (std::uint32_t h = 0; h < 2; ++h)
      for (std::uint32_t rows = 0; rows < 5; ++rows)
        for (std::uint32_t cols = 0; cols < 5; ++cols)
          for (std::uint32_t lane = 0; lane < 32; ++lane, ++n) {
            const Philox4 r = dropout_block(key, b, h, rows, cols, lane);
            calls.insert({r.w[0], r.w[1], r.w[2], r.w[3]});
          }
  EXPECT_EQ(calls.size(), static_cast<std::size_t>(n));
}

// keep is the comparison of the documented bits with the documented threshold.
TEST(Dropout, KeepReadsTheBitsOfItsBlock) {
  const DropoutRule rule{dropout_key(123, 456), dropout_threshold(0.3f)};
  for (std::uint32_t i = 0; i < 48; ++i)
    for (std::uint32_t j = 0; j < 48; ++j) {
      const Philox4 call =
          philox4x32_10({{j / 16 * 4 + j % 8 / 2, i / 16 * 8 + i % 8, 5, 3}}, rule.key);
      const std::uint32_t word = call.w[(i % 16 >= 8 ? 2 : 0) + (j % 16 >= 8 ? 1 : 0)];
      const std::uint32_t bits = j % 2 == 1 ? word >> 16 : word & 0xffff;
      ASSERT_EQ(dropout_keep(rule, 3, 5, i, j), bits >= rule.threshold) << i << "," << j;
    }
}

TEST(Dropout, RateIsWithinFiveSigma) {
  constexpr std::uint32_t kSide = 512;
  for (const float p : {0.01f, 0.1f, 0.5f, 0.9f}) {
    const DropoutRule rule{dropout_key(42, 0), dropout_threshold(p)};
    double kept = 0, equal_right = 0;
    for (std::uint32_t i = 0; i < kSide; ++i)
      for (std::uint32_t j = 0; j < kSide; ++j) {
        const bool keep = dropout_keep(rule, 0, 1, i, j);
        kept += keep;
        equal_right += keep == dropout_keep(rule, 0, 1, i, j + 1);
      }
    const double n = double{kSide} * kSide, sigma = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR(kept / n, 1 - p, 5 * sigma + 1.0 / 65536);
    const double agree =
        p * p + (1 - p) * (1 - p);  // of neighbours that know nothing of each other
    EXPECT_NEAR(equal_right / n, agree, 10 * std::sqrt(agree * (1 - agree) / n) + 1e-4);
  }
}

TEST(Dropout, ThresholdAndScaleAtTheEnds) {
  EXPECT_EQ(dropout_threshold(0.0f), 0u);
  EXPECT_EQ(dropout_scale(0.0f), 1.0f);
  EXPECT_EQ(dropout_threshold(0.5f), 32768u);
  EXPECT_EQ(dropout_scale(0.5f), 2.0f);
  EXPECT_EQ(dropout_threshold(0.9999999f), 65535u);  // something is always kept
  EXPECT_EQ(dropout_scale(0.9999999f), 65536.0f);
}

TEST(Dropout, SeedAndOffsetBothMatter) {
  std::set<std::array<std::uint32_t, 2>> keys;
  for (std::uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull})
    for (std::uint64_t offset : {0ull, 1ull, 1ull << 32, ~0ull}) {
      const PhiloxKey k = dropout_key(seed, offset);
      keys.insert({k.k0, k.k1});
    }
  EXPECT_EQ(keys.size(), 16u);
}

}  // namespace
