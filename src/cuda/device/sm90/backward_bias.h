// dBias: dS summed over the dimensions in which the bias is broadcast. A kernel of its own, run
// only when asked: it recomputes dS, every number of dBias belongs to one CTA, so the sum has one
// order, and no tile of dS is ever stored.
//
// A CTA has 64 x 64 numbers of dBias in its accumulators' places: 64 keys by 64 queries, or all
// keys, or all queries, if that dimension is broadcast.
#pragma once

#include "cuda/device/sm90/backward_recompute.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct BiasGradient : Recompute<C> {
  using Base = Recompute<C>;
  using Base::p, Base::shared;
  using typename Base::Rules;
  using typename Base::Scores;
  using typename Base::Tile;
  static_assert(C.tile_kv == 64);

  Scores sum;  // S^T's places: 64 keys x tile_q

  using Base::Base;

  TW_DEVICE void add_tile(const Sequence& s, const Tile& t) {
    if (!this->take(s, t)) return;
    Scores probabilities, dp;
    const Rules rules = this->recompute(s, t, 0, probabilities, dp);
    const uint32_t s_statistics = rules.statistics(shared.delta);
#pragma unroll
    for (int i = 0; i < Rules::kCount; ++i)
      sum[i] += probabilities[i] * rules.excess(dp[i], rules.statistic(s_statistics, i / 4), i);
  }

  // The tiles of one item: those at (q_tile, kv_tile), or all in a dimension that is broadcast.
  TW_DEVICE void add_tiles(const Sequence& s, int head, int q_tile, int kv_tile) {
    const int q_end = p.dbias.sums_q ? ceil_div(s.seq_q, C.tile_q) : q_tile + 1;
    const int kv_end = p.dbias.sums_kv ? ceil_div(s.seq_kv, C.tile_kv) : kv_tile + 1;
    for (int i = q_tile; i < q_end; ++i)
      for (int j = kv_tile; j < kv_end; ++j) add_tile(s, {head, i, j});
  }

  // Sums over the thread's queries and its quad's: what is left is one number a key.
  TW_DEVICE void sum_over_queries() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < Rules::kCount; ++i)
        if (i / 2 % 2 == r) total += sum[i];
      total += ptx::shuffle_xor(total, 1);
      total += ptx::shuffle_xor(total, 2);
      sum[2 * r] = threadIdx.x % 4 == 0 ? total : 0.0f;
    }
  }
  TW_DEVICE void sum_over_keys() {
    typename Base::QueryValues of_thread;
#pragma unroll
    for (int i = 0; i < Rules::kCount; ++i)
      if (i / 2 % 2 == 0) of_thread[Base::query_of(i)] = sum[i] + sum[i + 2];
    Base::sum_over_keys(of_thread, 0);
    __syncthreads();
  }

  TW_DEVICE void store(float* g_out, int q_tile, int kv_tile) {
    const BiasGradientTensor& d = p.dbias;
    const int thread = threadIdx.x, first_query = q_tile * C.tile_q;
    const int key = kv_tile * C.tile_kv + thread / 32 * 16 + thread % 32 / 4;
    if (d.sums_kv) {
      sum_over_keys();
      if (d.sums_q) {
        float total = 0.0f;
        for (int i = 0; i < C.tile_q; ++i) total += this->query_sum(i, 0);
        if (thread == 0) *g_out = total;
      } else if (thread < C.tile_q && first_query + thread < p.seq_q) {
        g_out[(first_query + thread) * d.stride_q] = this->query_sum(thread, 0);
      }
      return;
    }
    if (d.sums_q) {
      sum_over_queries();
      for (int r = 0; r < 2; ++r)
        if (thread % 4 == 0 && key + 8 * r < p.seq_kv)
          g_out[(key + 8 * r) * d.stride_kv] = sum[2 * r];
      return;
    }
#pragma unroll
    for (int i = 0; i < Rules::kCount; ++i) {
      const int query = first_query + thread % 4 * 2 + i / 4 * 8 + i % 2;
      const int own_key = key + i / 2 % 2 * 8;
      if (query < p.seq_q && own_key < p.seq_kv)
        g_out[query * d.stride_q + own_key * d.stride_kv] = sum[i];
    }
  }

  TW_DEVICE void run() {
    const BiasGradientTensor& d = p.dbias;
    const int kv_tiles = d.sums_kv ? 1 : p.kv_tiles, q_tiles = d.sums_q ? 1 : p.q_tiles;
    const int heads = d.sums_heads ? 1 : p.heads_q;
    int rest = blockIdx.x;
    const int kv_tile = rest % kv_tiles;
    rest /= kv_tiles;
    const int q_tile = rest % q_tiles;
    rest /= q_tiles;
    const int head = rest % heads, batch = rest / heads;
#pragma unroll
    for (float& x : sum) x = 0.0f;
    const int batch_end = d.sums_batch ? p.batch : batch + 1;
    const int head_end = d.sums_heads ? p.heads_q : head + 1;
    for (int b = batch; b < batch_end; ++b) {
      const Sequence s = make_sequence<C>(p, b);
      for (int h = head; h < head_end; ++h) add_tiles(s, h, q_tile, kv_tile);
    }
    store(d.data + batch * d.stride_b + head * d.stride_h, q_tile, kv_tile);
  }
};

template <BackwardConfig C>
requires ValidBackward<C> TW_DEVICE void bias_kernel(const BackwardParams& p) {
  extern __shared__ __align__(1024) uint8_t s_memory[];
  using Shared = RecomputeShared<C>;
  static_assert(sizeof(Shared) <= C.recompute_smem_bytes());
  BiasGradient<C>{p, *reinterpret_cast<Shared*>(s_memory)}.run();
}

}  // namespace tilewise::sm90::backward
