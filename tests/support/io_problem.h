// One kv head of a problem in slow memory, with the query heads that share it, and the arithmetic
// on tiles that every counting visitor needs.
#pragma once

#include <cmath>
#include <limits>
#include <random>

#include "core/schedule.h"
#include "support/two_level_memory.h"
#include "tilewise/problem.hpp"

namespace tilewise::testing {

inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct QueryHead {
  SlowMatrix q, o, lse, bias;           // bias has no columns when there is none
  SlowMatrix running_o, running_stats;  // fa1; stats: (max, sum)
  SlowMatrix s, p;                      // standard
  SlowMatrix d_o, dq, delta, running_dq, dp, ds;
};

struct KvHead {
  BandMask mask;
  float scale = 1;
  std::int64_t d = 0, dv = 0;
  SlowMatrix k, v, dk, dv_grad, running_dk, running_dv;
  std::vector<QueryHead> heads;
};

// Random Q, K, V, bias and dO of batch 1, kv head 0; everything else zeros (or no values at all).
inline KvHead make_kv_head(const Problem& p, Values values, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  const double e = size_of(p.dtype), eo = size_of(p.out_dtype.value_or(p.dtype));
  auto matrix = [&](std::int64_t rows, std::int64_t cols, double bytes) {
    SlowMatrix m{rows, cols, bytes, {}};
    if (values == Values::kMove) m.data.assign(rows * cols, 0.0f);
    return m;
  };
  auto random = [&](std::int64_t rows, std::int64_t cols, double bytes) {
    SlowMatrix m = matrix(rows, cols, bytes);
    for (float& x : m.data) x = normal(rng);
    return m;
  };
  const std::int64_t sq = p.seq_q, sk = p.seq_kv, d = p.head_dim, dv = p.head_dim_v;
  KvHead kv;
  kv.mask = make_band(
      {sq, sk, p.mask.causal, p.mask.left, p.mask.right, p.mask.align == Align::kBottomRight});
  kv.scale = 1 / std::sqrt(static_cast<float>(d));
  kv.d = d;
  kv.dv = dv;
  kv.k = random(sk, d, e);
  kv.v = random(sk, dv, e);
  kv.dk = matrix(sk, d, e);
  kv.dv_grad = matrix(sk, dv, e);
  kv.running_dk = matrix(sk, d, 4);
  kv.running_dv = matrix(sk, dv, 4);
  for (std::int64_t h = 0; h < p.heads_q / p.heads_kv; ++h)
    kv.heads.push_back({.q = random(sq, d, e),
                        .o = matrix(sq, dv, eo),
                        .lse = matrix(sq, 1, 4),
                        .bias = random(sq, p.bias.present ? sk : 0, size_of(p.bias.dtype)),
                        .running_o = matrix(sq, dv, 4),
                        .running_stats = matrix(sq, 2, 4),
                        .s = matrix(sq, sk, 4),
                        .p = matrix(sq, sk, 4),
                        .d_o = random(sq, dv, eo),
                        .dq = matrix(sq, d, e),
                        .delta = matrix(sq, 1, 4),
                        .running_dq = matrix(sq, d, 4),
                        .dp = matrix(sq, sk, 4),
                        .ds = matrix(sq, sk, 4)});
  return kv;
}

// Calls visit(span) for consecutive spans of at most `step` rows.
template <class Visit>
void for_blocks(std::int64_t rows, std::int64_t step, Visit&& visit) {
  for (std::int64_t i = 0; i < rows; i += step) visit(Span{i, min_of(i + step, rows)});
}

// out += a b^T
inline void add_product_bt(FastTile& out, const FastTile& a, const FastTile& b) {
  if (!out.has_values()) return;
  for (std::int64_t i = 0; i < out.rows(); ++i)
    for (std::int64_t j = 0; j < out.cols(); ++j)
      for (std::int64_t l = 0; l < a.cols(); ++l) out(i, j) += a(i, l) * b(j, l);
}

// out += a b
inline void add_product(FastTile& out, const FastTile& a, const FastTile& b) {
  if (!out.has_values()) return;
  for (std::int64_t i = 0; i < out.rows(); ++i)
    for (std::int64_t l = 0; l < a.cols(); ++l)
      for (std::int64_t j = 0; j < out.cols(); ++j) out(i, j) += a(i, l) * b(l, j);
}

// out += a^T b
inline void add_product_at(FastTile& out, const FastTile& a, const FastTile& b) {
  if (!out.has_values()) return;
  for (std::int64_t l = 0; l < a.rows(); ++l)
    for (std::int64_t i = 0; i < out.rows(); ++i)
      for (std::int64_t j = 0; j < out.cols(); ++j) out(i, j) += a(l, i) * b(l, j);
}

// What the tile of scores is made of.
struct ScoreTile {
  TwoLevelMemory& fast;
  const KvHead& kv;
  const QueryHead& head;
  Span q, k;
};

// s = scale q k^T + bias, -inf where the mask hides; the bias tile is in fast memory meanwhile.
inline void fill_scores(FastTile& s, const ScoreTile& at, const FastTile& q, const FastTile& k) {
  const std::int64_t bias_cols = at.head.bias.cols ? at.k.size() : 0;
  FastTile bias(at.fast, at.head.bias, {at.q.begin, at.k.begin}, {at.q.size(), bias_cols});
  add_product_bt(s, q, k);
  if (!s.has_values()) return;
  for (std::int64_t i = 0; i < s.rows(); ++i)
    for (std::int64_t j = 0; j < s.cols(); ++j) {
      s(i, j) = at.kv.scale * s(i, j) + (bias_cols ? bias(i, j) : 0);
      if (!at.kv.mask.keep(at.q.begin + i, at.k.begin + j)) s(i, j) = kNegInf;
    }
}

// stats (max, sum) of rows that have seen nothing.
inline void reset_stats(FastTile& stats) {
  if (!stats.has_values()) return;
  for (std::int64_t i = 0; i < stats.rows(); ++i) stats(i, 0) = kNegInf;
}

// s becomes exp(s - max) with the new maximum; the sum, and O when given, are rescaled to it.
inline void online_softmax(FastTile& s, FastTile& stats, FastTile* o) {
  if (!s.has_values()) return;
  for (std::int64_t i = 0; i < s.rows(); ++i) {
    float top = stats(i, 0);
    for (std::int64_t j = 0; j < s.cols(); ++j) top = std::max(top, s(i, j));
    if (top == kNegInf) {
      for (std::int64_t j = 0; j < s.cols(); ++j) s(i, j) = 0;
      continue;
    }
    const float shrink = std::exp(stats(i, 0) - top);
    stats(i, 0) = top;
    stats(i, 1) *= shrink;
    for (std::int64_t j = 0; o && j < o->cols(); ++j) (*o)(i, j) *= shrink;
    for (std::int64_t j = 0; j < s.cols(); ++j) {
      s(i, j) = std::exp(s(i, j) - top);
      stats(i, 1) += s(i, j);
    }
  }
}

// O is divided by the sum and stored; the LSE of (max, sum) likewise, in place of the maximum.
inline void finish_rows(TwoLevelMemory& fast, QueryHead& head, Span q, FastTile& o,
                        FastTile& stats) {
  if (fast.has_values())
    for (std::int64_t i = 0; i < o.rows(); ++i) {
      const float sum = stats(i, 1);
      for (std::int64_t j = 0; j < o.cols(); ++j) o(i, j) = sum > 0 ? o(i, j) / sum : 0;
      if (sum > 0)
        head.lse.at(q.begin + i, 0) = stats(i, 0) + std::log(sum);
      else
        head.lse.at(q.begin + i, 0) = kNegInf;
    }
  o.store(head.o, {q.begin, 0});
  fast.move(static_cast<double>(q.size()) * head.lse.element_bytes);
}

}  // namespace tilewise::testing
