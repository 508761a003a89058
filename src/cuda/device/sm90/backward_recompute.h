// What the kernels beside the main one recompute: P^T and dP^T of a key tile and a query tile (2 of
// the backward's 5 products), to sum what they make of them in an order of their own.
//
// A CTA is one warpgroup. Loads are not overlapped with products; two CTAs of a multiprocessor do
// that for each other.
#pragma once

#include "cuda/device/sm90/backward_consumer.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct RecomputeShared {
  uint8_t q[Tiles<C>::Q::kBytes];
  uint8_t d_o[Tiles<C>::DO::kBytes];
  uint8_t k[Tiles<C>::K::kBytes];
  uint8_t v[Tiles<C>::V::kBytes];
  float lse[C.tile_q], delta[C.tile_q];
  float sums[2][4][C.tile_q];  // of each warp's keys
  uint64_t full;
};

template <BackwardConfig C>
struct Recompute {
  using Rules = ScoreRules<C>;
  using Scores = typename Rules::Scores;
  // A thread's queries: of its scores i, i + 2 are of the same.
  static constexpr int kQueries = Rules::kCount / 2;
  using QueryValues = float[kQueries];
  TW_DEVICE static constexpr int query_of(int score) { return score / 4 * 2 + score % 2; }

  const BackwardParams& p;
  RecomputeShared<C>& shared;
  uint32_t phase = 0;
  const float* queries_here = nullptr;  // the statistics of those in shared memory

  struct Tile {
    int head, q_tile, kv_tile;
  };

  TW_DEVICE Recompute(const BackwardParams& params, RecomputeShared<C>& memory)
      : p(params), shared(memory) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&shared.full, 1);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }

  template <class Shape>
  TW_DEVICE void load(const TensorMap& map, const uint8_t* s_tile, TmaCoordinates at) const {
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel) {
      at.c0 = panel * tile::kPanelColumns;
      ptx::tma_load_4d({&map, &shared.full, ptx::l2_evict_last()},
                       ptx::shared_address(s_tile) + panel * Shape::kPanelBytes, at);
    }
  }

  TW_DEVICE void load_queries(const Sequence& s, const Tile& t, const float* g_stats) const {
    using T = Tiles<C>;
    constexpr uint32_t kStatBytes = C.tile_q * 4;
    ptx::mbarrier_expect_bytes(&shared.full, T::Q::kBytes + T::DO::kBytes + 2 * kStatBytes);
    const int batch = C.varlen && p.cu_seqlens_q ? 0 : s.batch;
    const TmaCoordinates at{0, s.q_begin + t.q_tile * C.tile_q, t.head, batch};
    load<typename T::Q>(p.q, shared.q, at);
    load<typename T::DO>(p.d_o, shared.d_o, at);
    ptx::tma_load_bytes(&shared.full, ptx::shared_address(shared.lse), g_stats, kStatBytes);
    ptx::tma_load_bytes(&shared.full, ptx::shared_address(shared.delta), g_stats + C.tile_q,
                        kStatBytes);
  }
  TW_DEVICE void load_keys(const Sequence& s, const Tile& t) const {
    using T = Tiles<C>;
    ptx::mbarrier_arrive_expect_bytes(&shared.full, T::K::kBytes + T::V::kBytes);
    const int batch = C.varlen && p.cu_seqlens_kv ? 0 : s.batch;
    const TmaCoordinates at{0, s.kv_begin + t.kv_tile * C.tile_kv, t.head / p.heads_per_kv, batch};
    load<typename T::K>(p.k, shared.k, at);
    load<typename T::V>(p.v, shared.v, at);
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

  // Loads the operands, queries only if they are others than before; false if the band hides all of
  // the tile.
  TW_DEVICE bool take(const Sequence& s, const Tile& t) {
    const Span q{int64_t{t.q_tile} * C.tile_q, int64_t{t.q_tile + 1} * C.tile_q};
    const Span k{int64_t{t.kv_tile} * C.tile_kv, int64_t{t.kv_tile + 1} * C.tile_kv};
    if (s.band().classify(q, k) == TileClass::kEmpty) return false;
    ptx::fence_async_shared();  // of the loads of statistics
    __syncthreads();            // everyone is done with the tile before
    const float* const g_stats =
        p.stats + (int64_t{t.head} * p.tiles + s.first_tile + t.q_tile) * (2 * C.tile_q);
    if (threadIdx.x == 0) {
      if (g_stats != queries_here) load_queries(s, t, g_stats);
      load_keys(s, t);
    }
    queries_here = g_stats;
    ptx::mbarrier_wait(&shared.full, phase);
    phase ^= 1;
    clear_foreign_rows(s, t);
    return true;
  }

  // P^T (undropped) and dP^T of 64 keys of the tile, from `first_key` on.
  TW_DEVICE Rules recompute(const Sequence& s, const Tile& t, int first_key, Scores& probabilities,
                            Scores& dp) {
    using T = Tiles<C>;
    issue_score_products<C, typename T::K, typename T::Q>(probabilities, first_key, shared.k,
                                                          shared.q);
    issue_score_products<C, typename T::V, typename T::DO>(dp, first_key, shared.v, shared.d_o);
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(probabilities);
    ptx::pin_registers(dp);
    const int thread = threadIdx.x;
    Rules rules{p,
                s,
                {t.kv_tile * C.tile_kv + first_key + thread / 32 * 16 + thread % 32 / 4,
                 t.q_tile * C.tile_q + thread % 4 * 2, t.head}};
    rules.make_exponents(probabilities, shared.lse);
    rules.template make_probabilities<true>(probabilities);
    return rules;
  }

  // Sums over the keys of all threads. To be read, by query_sum, after a barrier.
  TW_DEVICE void sum_over_keys(const QueryValues& of_thread, int which) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      float total = of_thread[j];
      for (int lanes = 4; lanes < 32; lanes *= 2) total += ptx::shuffle_xor(total, lanes);
      if (lane < 4) shared.sums[which][warp][j / 2 * 8 + lane * 2 + j % 2] = total;
    }
  }
  TW_DEVICE float query_sum(int query, int which) const {
    const auto& sums = shared.sums[which];
    return sums[0][query] + sums[1][query] + sums[2][query] + sums[3][query];
  }
};

}  // namespace tilewise::sm90::backward
