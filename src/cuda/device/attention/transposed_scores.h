// The backward's scores lie transposed: S^T, 64 keys x tile_q queries to a warpgroup, so that P^T
// and dS^T are A operands of the products that follow. What happens to them between the products.
#pragma once

#include "cuda/device/ptx/math.h"
#include "cuda/device/ptx/shared.h"
#include "cuda/device/sm90/backward_work.h"

namespace tilewise::sm90::backward {

// Where a thread's scores lie: keys key, key + 8 and queries query + 8 j + {0, 1}, inside the
// sequence.
struct ScorePlace {
  int key, query;
  int head;  // of the queries

  TW_DEVICE int key_of(int i) const { return key + i / 2 % 2 * 8; }
  TW_DEVICE int query_of(int i) const { return query + i / 4 * 8 + i % 2; }
};

// The queries that see a thread's two keys, counted from its own first: [first, last].
struct SeenQueries {
  int first[2], last[2];

  template <BackwardConfig C>
  TW_DEVICE static SeenQueries make(const Sequence& s, const ScorePlace& at) {
    SeenQueries seen;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = at.key + 8 * r;
      constexpr int kNever = 1 << 30;
      seen.first[r] = key >= s.seq_kv ? kNever : C.band == Band::kFull ? 0 : key - s.hi - at.query;
      seen.last[r] = C.band == Band::kBoth ? key - s.lo - at.query : kNever;
    }
    return seen;
  }
  template <BackwardConfig C>
  TW_DEVICE bool hides(int i) const {
    const int r = i / 2 % 2, column = i / 4 * 8 + i % 2;
    return column < first[r] || (C.band == Band::kBoth && column > last[r]);
  }
};

// Whether 64 keys and the queries of a tile need no mask.
template <BackwardConfig C>
TW_DEVICE bool all_visible(const Sequence& s, int first_key, int first_query) {
  using ptx::warp_uniform;  // s lies in shared memory
  if (first_key + 64 > warp_uniform(s.seq_kv)) return false;
  if (C.band != Band::kFull && first_key + 63 - first_query > warp_uniform(s.hi)) return false;
  return C.band != Band::kBoth || first_key - (first_query + C.tile_q - 1) >= warp_uniform(s.lo);
}

// One step's scores of a thread, from products to P and dS. Rows of `s_lse` and `s_delta` are the
// tile's queries.
template <BackwardConfig C>
struct ScoreRules {
  static constexpr int kCount = C.tile_q / 2;
  using Scores = float[kCount];
  using Operands = uint32_t[C.tile_q / 16][4];

  const BackwardParams& p;
  const Sequence& sequence;
  const ScorePlace at;
  uint32_t kept[C.dropout ? kCount / 32 : 1];   // a bit for each score that dropout leaves
  uint32_t slopes[C.softcap ? kCount / 2 : 1];  // the softcap's derivatives, pairs of f16

  // Where a thread's statistics begin, and that of the queries of scores 4 j (and 4 j + 2) and
  // 4 j + 1 (and 4 j + 3). By address: of pointers, nvcc makes two loads and an address for each.
  TW_DEVICE static uint32_t statistics(const float* s_row) {
    return ptx::shared_address(s_row) + (ptx::thread_number() & 3u) * 8;
  }
  TW_DEVICE static float2 statistic(uint32_t s_statistics, int j) {
    return ptx::load_shared_pair(s_statistics + 32 * j);
  }

  // c * tanh(s / c) in log2 units; its derivative goes to `slope`.
  TW_DEVICE float softcapped(float s, float& slope) const {
    const float e = ptx::ex2(s * (2.0f * kLog2e) * p.scale_over_softcap);
    const float t = 1.0f - 2.0f * ptx::rcp(e + 1.0f);
    slope = 1.0f - t * t;
    return p.softcap_log2 * t;
  }
  TW_DEVICE float bias_at(int64_t index) const {
    if constexpr (C.bias == BiasType::kF32) return static_cast<const float*>(p.bias)[index];
    const uint16_t bits = static_cast<const uint16_t*>(p.bias)[index];
    return C.bias == BiasType::kBf16 ? ptx::bf16_to_f32(bits) : ptx::f16_to_f32(bits);
  }

  // Raw products to scores in log2 units.
  TW_DEVICE void modify(Scores& s) {
    float alibi = 0.0f;
    if constexpr (C.alibi)
      alibi =
          kLog2e * p.alibi_slopes[sequence.batch * p.alibi_stride_b + at.head * p.alibi_stride_h];
    const int64_t bias_base = sequence.batch * p.bias_stride_b + at.head * p.bias_stride_h;
    float slope[2];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float x = C.softcap ? softcapped(s[i], slope[i % 2]) : s[i] * p.scale_log2;
      if constexpr (C.softcap)
        if (i % 2) slopes[i / 2] = ptx::pack<Element::kF16>(slope[0], slope[1]);
      const int key = at.key_of(i), query = at.query_of(i);
      if constexpr (C.alibi) {
        const int distance = key - query - sequence.diagonal;
        x -= alibi * static_cast<float>(distance < 0 ? -distance : distance);
      }
      if constexpr (C.bias != BiasType::kNone)
        if (query < sequence.seq_q && key < sequence.seq_kv)
          x += kLog2e * bias_at(bias_base + query * p.bias_stride_q + key * p.bias_stride_kv);
      s[i] = x;
    }
  }

  // Products become exponents: scores in log2 units, less the row's LSE.
  TW_DEVICE void make_exponents(Scores& s, const float* s_lse) {
    if constexpr (C.modifies_scores()) modify(s);
    const float scale = C.modifies_scores() ? 1.0f : p.scale_log2;
    const uint32_t s_statistics = statistics(s_lse);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const float2 lse = statistic(s_statistics, j);
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = fmaf(s[i], scale, i % 2 ? -lse.y : -lse.x);
    }
  }

  // Exponents become probabilities.
  template <bool kMasked>
  TW_DEVICE void make_probabilities(Scores& s) {
    SeenQueries seen;
    if constexpr (kMasked) seen = SeenQueries::make<C>(sequence, at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = ptx::ex2(s[i]);
      if constexpr (kMasked) s[i] = seen.hides<C>(i) ? 0.0f : s[i];
    }
    if constexpr (C.dropout) find_kept();
  }

  // A call of the generator serves a row of queries and two keys (core/philox.h); of its bits this
  // thread, which holds one of the keys, needs half.
  TW_DEVICE void find_kept() {
#pragma unroll
    for (int word = 0; word < kCount / 32; ++word) kept[word] = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 8)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int key = at.key, query = at.query_of(i + odd);
        const Philox4 call = dropout_block(p.dropout_key, sequence.batch, at.head, query / 16,
                                           key / 16, query % 8 * 4 + key % 8 / 2);
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // queries query, query + 8; keys key, key + 8
          const uint32_t bits = dropout_bits(call, j / 2 * 8, j % 2 * 8 + key % 2);
          const int score = i + j / 2 * 4 + j % 2 * 2 + odd;
          if (bits >= p.dropout_threshold) kept[score / 32] |= 1u << score % 32;
        }
      }
  }
  TW_DEVICE bool is_kept(int i) const {
    return kept[i / 32] >> i % 32 & 1;
  }

  // P as the left operand of dV; dropout's scale comes at the end.
  TW_DEVICE void pack_probabilities(const Scores& s, Operands& to) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const bool keep[2] = {!C.dropout || is_kept(i), !C.dropout || is_kept(i + 1)};
      to[i / 8][i % 8 / 2] = ptx::pack<C.element>(keep[0] ? s[i] : 0.0f, keep[1] ? s[i + 1] : 0.0f);
    }
  }

  // P for whoever makes dS of it elsewhere: undropped, the softcap's derivative multiplied in.
  TW_DEVICE void pack_for_gradients(const Scores& s, Operands& to) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float low = C.softcap ? s[i] * slope_at(i) : s[i];
      const float high = C.softcap ? s[i + 1] * slope_at(i + 1) : s[i + 1];
      to[i / 8][i % 8 / 2] = ptx::pack<C.element>(low, high);
    }
  }
  TW_DEVICE float slope_at(int i) const {
    return ptx::f16_to_f32(static_cast<uint16_t>(slopes[i / 2] >> 16 * (i % 2)));
  }

  // P of score i as it was rounded: registers are too few to keep it as it was.
  TW_DEVICE static float probability(const Operands& rounded, int i) {
    const uint32_t pair = rounded[i / 8][i % 8 / 2];
    if constexpr (C.element == Element::kBf16)
      return __uint_as_float(i % 2 ? pair & 0xFFFF0000u : pair << 16);
    return ptx::f16_to_f32(static_cast<uint16_t>(i % 2 ? pair >> 16 : pair));
  }

  // What dS of score i is P times of: M dP - delta, M dropout's mask with its scale.
  TW_DEVICE float excess(float dp, float2 delta, int i) const {
    if constexpr (C.dropout) dp = is_kept(i) ? dp * p.dropout_scale : 0.0f;
    return dp - (i % 2 ? delta.y : delta.x);
  }

  // dP becomes dS, as the left operand of dK.
  TW_DEVICE void pack_score_gradients(const Operands& rounded, const Scores& dp,
                                      const float* s_delta, Operands& to) const {
    const uint32_t s_statistics = statistics(s_delta);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 delta = statistic(s_statistics, i / 4);
      to[i / 8][i % 8 / 2] =
          ptx::pack<C.element>(probability(rounded, i) * excess(dp[i], delta, i),
                               probability(rounded, i + 1) * excess(dp[i + 1], delta, i + 1));
    }
  }
};

}  // namespace tilewise::sm90::backward
