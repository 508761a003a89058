// dBias: dS summed over the dimensions in which the bias is broadcast. A kernel of its own, run
// only when asked: it recomputes dS (2 of the backward's 5 products), every number of dBias belongs
// to one CTA, so the sum has one order, and no tile of dS is ever stored.
//
// A CTA is one warpgroup with 64 x 64 numbers of dBias in its accumulators' places: 64 keys by 64
// queries, or all keys, or all queries, if that dimension is broadcast. Loads are not overlapped
// with products; two CTAs of a multiprocessor do that for each other.
#pragma once

#include "cuda/device/sm90/backward_consumer.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct BiasShared {
  uint8_t q[Tiles<C>::Q::kBytes];
  uint8_t d_o[Tiles<C>::DO::kBytes];
  uint8_t k[Tiles<C>::K::kBytes];
  uint8_t v[Tiles<C>::V::kBytes];
  float lse[C.tile_q], delta[C.tile_q];
  float warp_sums[4][C.tile_q];
  uint64_t full;
};

template <BackwardConfig C>
struct BiasGradient {
  using Rules = ScoreRules<C>;
  using Scores = typename Rules::Scores;

  const BackwardParams& p;
  BiasShared<C>& shared;
  uint32_t phase = 0;
  Scores sum;  // S^T's places: 64 keys x tile_q

  struct Tile {
    int head, q_tile, kv_tile;
  };

  template <class Shape>
  TW_DEVICE void load(const TensorMap& map, const uint8_t* s_tile, TmaCoordinates at) const {
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel) {
      at.c0 = panel * tile::kPanelColumns;
      ptx::tma_load_4d({&map, &shared.full, ptx::l2_evict_last()},
                       ptx::shared_address(s_tile) + panel * Shape::kPanelBytes, at);
    }
  }

  TW_DEVICE void load_all(const Sequence& s, const Tile& t) const {
    using T = Tiles<C>;
    constexpr uint32_t kStatBytes = C.tile_q * 4;
    ptx::mbarrier_arrive_expect_bytes(
        &shared.full, T::Q::kBytes + T::DO::kBytes + T::K::kBytes + T::V::kBytes + 2 * kStatBytes);
    const int q_batch = C.varlen && p.cu_seqlens_q ? 0 : s.batch;
    const int kv_batch = C.varlen && p.cu_seqlens_kv ? 0 : s.batch;
    const TmaCoordinates q_at{0, s.q_begin + t.q_tile * C.tile_q, t.head, q_batch};
    const TmaCoordinates kv_at{0, s.kv_begin + t.kv_tile * C.tile_kv, t.head / p.heads_per_kv,
                               kv_batch};
    load<typename T::Q>(p.q, shared.q, q_at);
    load<typename T::DO>(p.d_o, shared.d_o, q_at);
    load<typename T::K>(p.k, shared.k, kv_at);
    load<typename T::V>(p.v, shared.v, kv_at);
    const float* const g_stats =
        p.stats + (int64_t{t.head} * p.tiles + s.first_tile + t.q_tile) * (2 * C.tile_q);
    ptx::tma_load_bytes(&shared.full, ptx::shared_address(shared.lse), g_stats, kStatBytes);
    ptx::tma_load_bytes(&shared.full, ptx::shared_address(shared.delta), g_stats + C.tile_q,
                        kStatBytes);
  }

  // Rows past the end of a packed sequence may hold NaN.
  template <class Shape>
  TW_DEVICE static void clear_rows(const uint8_t* s_tile, int rows) {
    if (rows < Shape::kRowCount)
      Shape{ptx::shared_address(s_tile)}.clear_rows(max_of(rows, 0), threadIdx.x, 128);
  }
  TW_DEVICE void clear_foreign_rows(const Sequence& s, const Tile& t) const {
    if constexpr (!C.varlen) return;
    const int queries = s.seq_q - t.q_tile * C.tile_q, keys = s.seq_kv - t.kv_tile * C.tile_kv;
    clear_rows<typename Tiles<C>::Q>(shared.q, queries);
    clear_rows<typename Tiles<C>::DO>(shared.d_o, queries);
    clear_rows<typename Tiles<C>::K>(shared.k, keys);
    clear_rows<typename Tiles<C>::V>(shared.v, keys);
    ptx::fence_async_shared();
    __syncthreads();
  }

  TW_DEVICE void add_tile(const Sequence& s, const Tile& t) {
    const Span q{int64_t{t.q_tile} * C.tile_q, int64_t{t.q_tile + 1} * C.tile_q};
    const Span k{int64_t{t.kv_tile} * C.tile_kv, int64_t{t.kv_tile + 1} * C.tile_kv};
    if (s.band().classify(q, k) == TileClass::kEmpty) return;
    ptx::fence_async_shared();  // of the loads of statistics
    __syncthreads();            // everyone is done with the tile before
    if (threadIdx.x == 0) load_all(s, t);
    ptx::mbarrier_wait(&shared.full, phase);
    phase ^= 1;
    clear_foreign_rows(s, t);
    Scores scores, dp;
    issue_score_products<C, typename Tiles<C>::K, typename Tiles<C>::Q>(scores, 0, shared.k,
                                                                        shared.q);
    issue_score_products<C, typename Tiles<C>::V, typename Tiles<C>::DO>(dp, 0, shared.v,
                                                                         shared.d_o);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(scores);
    ptx::pin_registers(dp);
    const int thread = threadIdx.x;
    Rules rules{p,
                s,
                {t.kv_tile * C.tile_kv + thread / 32 * 16 + thread % 32 / 4,
                 t.q_tile * C.tile_q + thread % 4 * 2, t.head}};
    rules.make_exponents(scores, shared.lse);
    rules.template make_probabilities<true>(scores);
    const uint32_t s_statistics = rules.statistics(shared.delta);
#pragma unroll
    for (int i = 0; i < Rules::kCount; ++i)
      sum[i] += scores[i] * rules.excess(dp[i], rules.statistic(s_statistics, i / 4), i);
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
  // Sums over all 64 keys: thread 4 w' + lane % 4 ... of warp 0 ends with one number a query.
  TW_DEVICE void sum_over_keys() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Rules::kCount; ++i) {
      if (i / 2 % 2) continue;
      float total = sum[i] + sum[i + 2];
      for (int lanes = 4; lanes < 32; lanes *= 2) total += ptx::shuffle_xor(total, lanes);
      if (lane < 4) shared.warp_sums[warp][i / 4 * 8 + lane * 2 + i % 2] = total;
    }
    __syncthreads();
  }
  TW_DEVICE float query_sum(int query) const {
    return shared.warp_sums[0][query] + shared.warp_sums[1][query] + shared.warp_sums[2][query] +
           shared.warp_sums[3][query];
  }

  TW_DEVICE void store(float* g_out, int q_tile, int kv_tile) {
    const BiasGradientTensor& d = p.dbias;
    const int thread = threadIdx.x, first_query = q_tile * C.tile_q;
    const int key = kv_tile * C.tile_kv + thread / 32 * 16 + thread % 32 / 4;
    if (d.sums_kv) {
      sum_over_keys();
      if (d.sums_q) {
        float total = 0.0f;
        for (int i = 0; i < C.tile_q; ++i) total += query_sum(i);
        if (thread == 0) *g_out = total;
      } else if (thread < C.tile_q && first_query + thread < p.seq_q) {
        g_out[(first_query + thread) * d.stride_q] = query_sum(thread);
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
  BiasShared<C>& shared = *reinterpret_cast<BiasShared<C>*>(s_memory);
  static_assert(sizeof(BiasShared<C>) <= C.bias_smem_bytes());
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.full, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  BiasGradient<C>{p, shared}.run();
}

}  // namespace tilewise::sm90::backward
