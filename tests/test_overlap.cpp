// Which tensors share bytes: against brute force over every element, for strides of every kind.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "api/check_overlap.h"
#include "support/seed.h"

namespace tilewise {
namespace {

std::set<std::intptr_t> bytes_of(const Tensor& t) {
  std::set<std::intptr_t> bytes;
  const auto base = reinterpret_cast<std::intptr_t>(t.data);
  for (std::int64_t n = 0; n < t.elements(); ++n) {
    std::int64_t rest = n, offset = 0;
    for (int i = t.rank - 1; i >= 0; --i) {
      offset += rest % t.shape[i] * t.strides[i];
      rest /= t.shape[i];
    }
    for (std::int64_t b = 0; b < size_of(t.dtype); ++b)
      bytes.insert(base + offset * size_of(t.dtype) + b);
  }
  return bytes;
}

bool share(const Tensor& a, const Tensor& b) {
  const auto left = bytes_of(a), right = bytes_of(b);
  return std::any_of(left.begin(), left.end(), [&](std::intptr_t x) { return right.count(x) > 0; });
}

Tensor placed(std::intptr_t at, std::vector<std::int64_t> shape,
              std::vector<std::int64_t> strides) {
  Tensor t;
  t.data = reinterpret_cast<void*>(4096 + 4 * at);
  t.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  std::copy(strides.begin(), strides.end(), t.strides.begin());
  return t;
}

TEST(Overlap, SlicesOfOneProjectionAreApart) {
  // (B, S, H, D) slices of (2, 5, 3 x 4 x 8) numbers.
  const auto slice = [](int i) { return placed(32 * i, {2, 5, 4, 8}, {480, 96, 8, 1}); };
  EXPECT_FALSE(overlap(slice(0), slice(1)));
  EXPECT_FALSE(overlap(slice(2), slice(0)));
  EXPECT_TRUE(overlap(slice(1), slice(1)));
  EXPECT_TRUE(overlap(slice(0), placed(31, {2, 5, 4, 8}, {480, 96, 8, 1})));
}

TEST(Overlap, NothingAndHugeStridesAreApart) {
  const Tensor one = placed(0, {4}, {1});
  EXPECT_FALSE(overlap(one, Tensor{}));
  EXPECT_FALSE(overlap(one, placed(1, {0, 4}, {4, 1})));
  EXPECT_FALSE(overlap(one, placed(1, {2, 2}, {std::int64_t{1} << 62, 1})));
  EXPECT_FALSE(overlap(one, placed(1, {2, 2}, {std::numeric_limits<std::int64_t>::min(), 1})));
}

// Never a false alarm; and nothing is missed among tensors of the same nested strides or dense
// ones.
TEST(Overlap, AgreesWithBruteForce) {
  std::mt19937_64 random(tilewise_test::seed());
  const auto pick = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int found = 0;
  for (int n = 0; n < 20000; ++n) {
    const bool same = n % 2;
    std::vector<std::int64_t> shape[2], strides(3);
    const std::int64_t inner = pick(1, 5), middle = pick(1, 4);
    for (auto& s : shape) s = {pick(1, 3), pick(1, middle), pick(1, inner)};
    strides = {middle * (inner + pick(0, 3)) + pick(0, 9), inner + pick(0, 3), 1};
    strides[0] = std::max(strides[0], middle * strides[1]);
    std::shuffle(strides.begin(), strides.end() - 1, random);
    if (strides[0] < strides[1])
      std::swap(shape[0][0], shape[0][1]), std::swap(shape[1][0], shape[1][1]);
    if (pick(0, 3) == 0) strides[0] = -strides[0];
    const Tensor a = placed(0, shape[0], strides);
    Tensor b = placed(pick(-40, 40), shape[1], strides);
    if (!same)  // dense
      b.strides = {b.shape[1] * b.shape[2], b.shape[2], 1};
    const bool truth = share(a, b), said = overlap(a, b);
    ASSERT_TRUE(truth || !said) << n;
    if (same && a.shape == b.shape) {
      ASSERT_EQ(said, truth) << n;
    }
    found += said;
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace tilewise
