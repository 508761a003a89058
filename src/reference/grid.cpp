// The two grids. Shapes stay small: what breaks kernels is edges, not size.
#include "reference/grid.h"

namespace tilewise::reference {
namespace {

// Tiles are powers of two: around each, one less and one more; and primes.
const std::vector<std::int64_t> kEdges = {0,  1,  2,  3,  7,  8,  9,   15,  16,  17,  31, 32,
                                          33, 47, 63, 64, 65, 97, 127, 128, 129, 131, 257};
const std::vector<std::int64_t> kQuickEdges = {0, 1, 2, 15, 16, 17, 31, 63, 64, 65, 97, 129};
constexpr std::int64_t kGroups[][2] = {{1, 1}, {2, 2}, {3, 1},  {6, 2}, {5, 1},
                                       {7, 1}, {8, 1}, {14, 2}, {12, 4}};

std::vector<std::int64_t> head_dims() {
  std::vector<std::int64_t> d = {1, 2, 3, 5, 8, 13, 67};
  for (std::int64_t x = 16; x <= 256; x += 8) d.push_back(x);
  d.push_back(320);
  d.push_back(512);
  return d;
}

// Adds cases; `step` keeps every step-th of a product, from a drawn start.
class Grid {
 public:
  explicit Grid(std::uint64_t seed) : make_(seed) {}

  void edges(const std::vector<std::int64_t>& sizes, std::int64_t step, int features) {
    std::int64_t at = make_.pick(0, step - 1);
    for (const std::int64_t sq : sizes)
      for (const std::int64_t sk : sizes)
        if (at++ % step == 0) {
          const Shape s{make_.pick(1, 2), 2, make_.pick(1, 2), sq, sk, 8 * make_.pick(1, 9), 16};
          add(s, features);
        }
  }

  // Every head dim with itself, and with another one for V.
  void dims(int repeats) {
    const auto all = head_dims();
    for (const std::int64_t d : all)
      for (int r = 0; r < repeats; ++r) {
        const std::int64_t sq = make_.pick(1, 40), sk = make_.pick(1, 70);
        const std::int64_t dv = all[make_.pick(0, static_cast<std::int64_t>(all.size()) - 1)];
        add({1, 2, 1, sq, sk, d, r % 2 ? d : dv}, 1);
      }
  }

  void groups(int repeats) {
    for (const auto& g : kGroups)
      for (int r = 0; r < repeats; ++r)
        add({make_.pick(1, 3), g[0], g[1], make_.pick(1, 70), make_.pick(1, 70), 32, 32}, 2);
  }

  // Every feature alone, and every step-th pair.
  void features(std::int64_t step) {
    const auto& names = feature_names();
    std::int64_t at = make_.pick(0, step - 1);
    for (std::size_t a = 0; a < names.size(); ++a)
      for (std::size_t b = a; b < names.size(); ++b)
        if (a == b || at++ % step == 0) {
          const Shape s{2,
                        4,
                        2,
                        make_.pick(40, 90),
                        make_.pick(40, 90),
                        8 * make_.pick(2, 8),
                        8 * make_.pick(2, 8)};
          cases.push_back(make_.make(s, make_.any_dtype(), {names[a], names[b]}));
        }
  }

  void varlen(int repeats) {
    for (int pattern = 0; pattern < kLengthPatterns; ++pattern)
      for (int r = 0; r < repeats; ++r) {
        const bool many = pattern == static_cast<int>(LengthPattern::kOneLongManyTiny);
        const Shape s{many ? 9 : make_.pick(1, 5), 4,  2, make_.pick(1, 80),
                      make_.pick(1, 80),           24, 40};
        cases.push_back(make_.make_varlen(s, make_.any_dtype(), make_.any_features(r % 4),
                                          static_cast<LengthPattern>(pattern)));
      }
  }

  // No batch, no heads, no queries, no keys.
  void nothing() {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      cases.push_back(make_.make({0, 2, 1, 5, 7, 16, 8}, dtype, {"causal", "sink", "bias"}));
      cases.push_back(make_.make({2, 0, 1, 5, 7, 16, 8}, dtype, {"causal", "sink", "bias"}));
      cases.push_back(make_.make({2, 2, 1, 0, 7, 16, 8}, dtype, {"causal", "sink", "bias"}));
      cases.push_back(make_.make({2, 2, 1, 5, 0, 16, 8}, dtype, {"causal", "sink", "dlse"}));
      cases.push_back(make_.make({2, 2, 1, 5, 0, 16, 8}, dtype, {"bias", "dlse"}));
      cases.push_back(make_.make({2, 2, 1, 0, 0, 16, 8}, dtype, {"window"}));
    }
  }

  void mixtures(int n) {
    for (int i = 0; i < n; ++i)
      add({make_.pick(1, 3), 4, make_.pick(0, 1) ? 4 : 2, make_.pick(1, 150), make_.pick(1, 150),
           8 * make_.pick(1, 16), 8 * make_.pick(1, 16)},
          5);
  }

  std::vector<Case> cases;

 private:
  void add(const Shape& s, int features) {
    cases.push_back(make_.make(s, make_.any_dtype(), make_.any_features(features)));
  }

  CaseMaker make_;
};

}  // namespace

std::vector<Case> quick_grid(std::uint64_t seed) {
  Grid grid(seed);
  grid.nothing();
  grid.edges(kQuickEdges, 3, 2);
  grid.dims(1);
  grid.groups(1);
  grid.features(4);
  grid.varlen(5);
  grid.mixtures(20);
  return std::move(grid.cases);
}

std::vector<Case> full_grid(std::uint64_t seed) {
  Grid grid(seed);
  grid.nothing();
  grid.edges(kEdges, 1, 0);
  grid.edges(kEdges, 1, 3);
  grid.dims(12);
  grid.groups(12);
  for (int round = 0; round < 6; ++round) grid.features(1);
  grid.varlen(60);
  grid.mixtures(600);
  return std::move(grid.cases);
}

}  // namespace tilewise::reference
