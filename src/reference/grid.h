// The problems that every kernel is held against: edge shapes, head dims, groups, every feature
// alone and with others, every varlen pattern, all dtypes, kinds of input and memory layouts.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "reference/case.h"

namespace tilewise::reference {

struct Shape {
  std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v;
};

// The features a case can have, in the order in which they are applied.
const std::vector<std::string>& feature_names();

// Sequence lengths that have hurt somebody; `kRandom` draws them.
enum class LengthPattern : std::uint8_t {
  kRandom,
  kZeroFirst,
  kZeroMiddle,
  kZeroLast,
  kAllZero,
  kOneLongManyTiny
};
inline constexpr int kLengthPatterns = 6;

class CaseMaker {
 public:
  explicit CaseMaker(std::uint64_t seed) : random_(seed) {}

  // A case with the named features. Details that a feature leaves open are drawn.
  Case make(const Shape& shape, DType dtype, std::vector<std::string> features);
  // The same, with cu_seqlens and seqused on either side as drawn, and lengths of the pattern.
  Case make_varlen(const Shape& shape, DType dtype, std::vector<std::string> features,
                   LengthPattern pattern);
  // Kind of input, layout, dtype and up to `most` further features, all drawn.
  DType any_dtype();
  std::vector<std::string> any_features(int most);

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

 private:
  void apply(const std::string& feature, Case& c);
  void apply_bias(Case& c);
  void apply_varlen(Case& c, LengthPattern pattern);
  std::vector<std::int32_t> lengths(std::int64_t batch, std::int64_t longest,
                                    LengthPattern pattern);
  void finish(Case& c, const std::string& words);

  std::mt19937_64 random_;
};

// About 250 small cases that touch every feature and every edge; other seeds give other mixtures.
std::vector<Case> quick_grid(std::uint64_t seed);
// Some thousand cases: the products of what the quick grid samples.
std::vector<Case> full_grid(std::uint64_t seed);

}  // namespace tilewise::reference
