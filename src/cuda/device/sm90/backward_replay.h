// A second look at rows whose logits are large, for the accuracy of dQ and dK: dS is what is left
// of P (dP - delta) where one key has nearly all of a row's probability, and delta = rowsum(dO * O)
// has the rounding of O in it. Delta is worked out again, as rowsum(P * dP), from Q, K, V and dO,
// for the query tiles that hold such a row; prepare says which. The CPU does the same
// (cpu/kernels/backward_replay-inl.h).
//
// A row keeps its delta where its probabilities don't add up to 1: its LSE is then that of a
// softmax over more keys than these (ring attention).
#pragma once

#include "cuda/device/sm90/backward_prepare.h"
#include "cuda/device/sm90/backward_recompute.h"

namespace tilewise::sm90::backward {

template <BackwardConfig C>
struct Replay : Recompute<C> {
  using Base = Recompute<C>;
  using Base::p, Base::shared;
  using typename Base::QueryValues;
  using typename Base::Rules;
  using typename Base::Scores;
  using typename Base::Tile;

  QueryValues weight, weighted_dp;  // sum_j P_ij and sum_j P_ij dP_ij of the thread's keys

  using Base::Base;

  TW_DEVICE void add_tile(const Sequence& s, const Tile& t) {
    if (!this->take(s, t)) return;
#pragma unroll 1
    for (int first_key = 0; first_key < C.tile_kv; first_key += 64) {
      Scores probabilities, dp;
      const Rules rules = this->recompute(s, t, first_key, probabilities, dp);
#pragma unroll
      for (int i = 0; i < Rules::kCount; ++i) {
        constexpr float2 kNoDelta{};
        weight[Base::query_of(i)] += probabilities[i];
        weighted_dp[Base::query_of(i)] += probabilities[i] * rules.excess(dp[i], kNoDelta, i);
      }
    }
  }

  // Whether the row's LSE, in log2 units, is that of the keys that were looked at.
  TW_DEVICE static bool is_own(float total, float lse2) {
    constexpr float kSame = 4e-6f;  // as far as sums of products in another order go
    return total > 0.0f && fabsf(ptx::lg2(total)) <= kSame * fmaxf(1.0f, fabsf(lse2));
  }

  // Writes the row's statistics; returns its part of the sink's gradient.
  TW_DEVICE float finish_row(const RowTile<C>& at, int row) const {
    float* const g_stats = p.stats + at.place * (2 * C.tile_q);
    const float lse2 = g_stats[row];
    float sink = C.sink ? ptx::ex2(p.sink[at.head * p.sink_stride] * kLog2e - lse2) : 0.0f;
    const float total = this->query_sum(row, 0) + sink;
    if (is_own(total, lse2)) {
      const float d_lse = p.d_lse.data ? statistic(p.d_lse, at, row) : 0.0f;
      g_stats[row] = lse2 + ptx::lg2(total);
      g_stats[C.tile_q + row] = this->query_sum(row, 1) / total - d_lse;
      sink /= total;
    }
    return -g_stats[C.tile_q + row] * sink;
  }

  TW_DEVICE void run(const RowTile<C>& at) {
#pragma unroll
    for (int j = 0; j < Base::kQueries; ++j) weight[j] = weighted_dp[j] = 0.0f;
    const Span keys = at.sequence.keys_of_tile(at.tile, C.tile_q);
    for (int64_t begin = keys.begin / C.tile_kv * C.tile_kv; begin < keys.end; begin += C.tile_kv)
      add_tile(at.sequence, {at.head, at.tile, static_cast<int>(begin / C.tile_kv)});
    this->sum_over_keys(weight, 0);
    this->sum_over_keys(weighted_dp, 1);
    __syncthreads();
    const int row = threadIdx.x;
    const bool used = row < C.tile_q && at.first + row < at.sequence.seq_q;
    const float dsink = used ? finish_row(at, row) : 0.0f;
    __syncthreads();
    if constexpr (!C.sink) return;
    if (row < C.tile_q) shared.lse[row] = dsink;
    __syncthreads();
    store_dsink_part(p, at, shared.lse);
  }
};

// Every CTA looks through its share of the query tiles, a thread each.
template <BackwardConfig C>
requires ValidBackward<C> TW_DEVICE void replay_kernel(const BackwardParams& p) {
  ptx::launch_dependents();
  extern __shared__ __align__(1024) uint8_t s_memory[];
  using Shared = RecomputeShared<C>;
  static_assert(sizeof(Shared) <= C.recompute_smem_bytes());
  __shared__ uint32_t s_far[4];
  Replay<C> replay{p, *reinterpret_cast<Shared*>(s_memory)};
  ptx::wait_for_previous_kernel();
  const int tiles = p.q_tiles * p.heads_q * p.batch, grid = gridDim.x;
  for (int first = blockIdx.x; first < tiles; first += 128 * grid) {
    const int own = first + threadIdx.x * grid;
    bool far = false;
    if (own < tiles) {
      const RowTile<C> at(p, own);
      far = at.exists() && p.far_tiles[at.place] != 0;
    }
    __syncthreads();  // the round before has read s_far
    const uint32_t vote = __ballot_sync(ptx::kAllLanes, far);
    if (threadIdx.x % 32 == 0) s_far[threadIdx.x / 32] = vote;
    __syncthreads();
    for (int warp = 0; warp < 4; ++warp)
      for (uint32_t bits = s_far[warp]; bits != 0; bits &= bits - 1)
        replay.run(RowTile<C>(p, first + (warp * 32 + __ffs(bits) - 1) * grid));
  }
}

}  // namespace tilewise::sm90::backward
