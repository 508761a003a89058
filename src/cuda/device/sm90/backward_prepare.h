// The kernel before the main one: for each row delta = rowsum(dO * O) - dLSE, and LSE in log2
// units, laid out tile by tile so that the main kernel loads them with one copy; sums and turns are
// set to 0; the sink's gradient is summed over the tile. Bound by memory: reads O and dO once.
//
// One CTA a query tile and head. A row is read by `kLanes` threads, 16 bytes each.
#pragma once

#include "cuda/device/ptx/global.h"
#include "cuda/device/ptx/math.h"
#include "cuda/device/sm90/backward_work.h"

namespace tilewise::sm90::backward {

// The CTAs of prepare and finish, by number: all heads of a query tile, whose rows lie side by side
// if the tensors are (B, S, H, D), all tiles of a batch.
template <BackwardConfig C>
struct RowTile {
  Sequence sequence;
  int head, tile, first;  // of its sequence; first row
  int64_t place;          // among the tiles of the workspace

  TW_DEVICE RowTile(const BackwardParams& p, int index) {
    const int tile_of_all = index / p.heads_q;
    head = index % p.heads_q;
    tile = tile_of_all % p.q_tiles;
    sequence = make_sequence<C>(p, tile_of_all / p.q_tiles);
    first = tile * C.tile_q;
    place = int64_t{head} * p.tiles + sequence.first_tile + tile;
  }
  TW_DEVICE bool exists() const { return first < sequence.q_slot; }
};

template <BackwardConfig C>
TW_DEVICE float statistic(const StatTensor& t, const RowTile<C>& at, int row) {
  const int64_t i = int64_t{at.sequence.q_begin} + at.first + row;
  return t.data[at.sequence.batch * t.stride_b + at.head * t.stride_h + i * t.stride_s];
}

// The tile's part of the sink's gradient, from those of its rows.
template <BackwardConfig C>
TW_DEVICE void store_dsink_part(const BackwardParams& p, const RowTile<C>& at,
                                const float* s_rows) {
  if (threadIdx.x >= 32) return;
  float part = 0.0f;
  for (int row = threadIdx.x; row < C.tile_q; row += 32) part += s_rows[row];
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) part += ptx::shuffle_xor(part, lanes);
  if (threadIdx.x == 0) p.dsink_parts[at.place] = part;
}

template <Element kElement>
TW_DEVICE float dot_pair(uint32_t a, uint32_t b, float sum) {
  const auto low = [](uint32_t x) { return static_cast<uint16_t>(x); };
  const auto high = [](uint32_t x) { return static_cast<uint16_t>(x >> 16); };
  if constexpr (kElement == Element::kBf16) {
    sum = fmaf(ptx::bf16_to_f32(low(a)), ptx::bf16_to_f32(low(b)), sum);
    return fmaf(ptx::bf16_to_f32(high(a)), ptx::bf16_to_f32(high(b)), sum);
  }
  sum = fmaf(ptx::f16_to_f32(low(a)), ptx::f16_to_f32(low(b)), sum);
  return fmaf(ptx::f16_to_f32(high(a)), ptx::f16_to_f32(high(b)), sum);
}

template <BackwardConfig C>
struct Preparation {
  static constexpr int kLanes = C.head_dim_v <= 64 ? 8 : C.head_dim_v <= 128 ? 16 : 32;
  static constexpr int kRowsAtOnce = C.kRowThreads / kLanes;
  static constexpr int kPasses = C.tile_q / kRowsAtOnce;

  const BackwardParams& p;
  const RowTile<C>& at;

  TW_DEVICE int row_of_pass(int pass) const { return pass * kRowsAtOnce + threadIdx.x / kLanes; }
  TW_DEVICE bool used(int row) const { return at.first + row < at.sequence.seq_q; }

  // rowsum(dO * O) of this thread's row in each pass, in every lane.
  TW_DEVICE void row_sums(float (&sum)[kPasses]) const {
    const Sequence& s = at.sequence;
    const int column = threadIdx.x % kLanes * 8;
    const int64_t first = int64_t{s.q_begin} + at.first;
    uint32_t o[kPasses][4] = {}, d_o[kPasses][4] = {};
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int row = row_of_pass(i);
      if (!used(row) || column >= p.head_dim_v) continue;
      ptx::load_global(o[i], first_row(p.o, s.batch, at.head, first + row) + column);
      ptx::load_global(d_o[i], first_row(p.d_o_rows, s.batch, at.head, first + row) + column);
    }
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      sum[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i] = dot_pair<C.element>(o[i][j], d_o[i][j], sum[i]);
#pragma unroll
      for (int lanes = 1; lanes < kLanes; lanes *= 2) sum[i] += ptx::shuffle_xor(sum[i], lanes);
    }
  }

  // Of this thread's row in each pass. Loaded before the sums are there, which would be a trip to
  // memory later.
  struct Statistics {
    float lse[kPasses], d_lse[kPasses];
  };
  TW_DEVICE void load_statistics(Statistics& of) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int row = row_of_pass(i);
      const bool loads = threadIdx.x % kLanes == 0 && used(row);
      of.lse[i] = loads ? statistic(p.lse, at, row) : kMinusInf;
      of.d_lse[i] = loads && p.d_lse.data ? statistic(p.d_lse, at, row) : 0.0f;
    }
  }

  // Writes a row's LSE and delta; returns its part of the sink's gradient.
  TW_DEVICE float store_row(int row, float lse, float delta) const {
    float* const g_stats = p.stats + at.place * (2 * C.tile_q);
    const bool sees_keys = lse != kMinusInf;
    g_stats[row] = sees_keys ? lse * kLog2e : -kMinusInf;  // P = exp2(s - inf) = 0
    // A row that sees nothing adds nothing, whatever its dO and dLSE are: NaN, say.
    g_stats[C.tile_q + row] = used(row) && sees_keys ? delta : 0.0f;
    if constexpr (!C.sink) return 0.0f;
    return sees_keys ? -delta * ptx::ex2((p.sink[at.head * p.sink_stride] - lse) * kLog2e) : 0.0f;
  }

  TW_DEVICE void clear_sums() const {
    if constexpr (C.additions == Additions::kFixed) {
      if (threadIdx.x < C.dq_rounds()) p.turns[at.place * C.dq_rounds() + threadIdx.x] = 0;
      return;
    }
    float* const g_sum = p.dq_sum + at.place * C.dq_elements();
    constexpr uint32_t kZeros[4] = {};
    for (int i = threadIdx.x * 4; i < C.dq_elements(); i += C.kRowThreads * 4)
      ptx::store_global(g_sum + i, kZeros);
  }

  // Whether a row may hold logits far from 0, of which few keys have a share. exp(s) of its keys is
  // 3000 on average, or one in 3000; a bias that all of them share moves LSE down as well as up.
  TW_DEVICE bool is_far(int row, float lse) const {
    const int64_t keys = at.sequence.band().row(at.first + row).size();
    const float most = 8.0f + kLn2 * ptx::lg2(static_cast<float>(max_of(keys, int64_t{1})));
    return lse != kMinusInf && fabsf(lse) > most;
  }

  // Whether the tile has a row to be looked at again (backward_replay.h); a barrier.
  TW_DEVICE void mark_far(const Statistics& of) const {
    bool far = false;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) far |= is_far(row_of_pass(i), of.lse[i]);
    const int any = __syncthreads_or(far);
    if (threadIdx.x == 0) p.far_tiles[at.place] = any;
  }

  TW_DEVICE void run() const {
    clear_sums();
    Statistics of;
    load_statistics(of);
    float sum[kPasses];
    row_sums(sum);
    __shared__ float s_dsink[C.tile_q];
#pragma unroll
    for (int i = 0; i < kPasses; ++i)
      if (threadIdx.x % kLanes == 0)
        s_dsink[row_of_pass(i)] = store_row(row_of_pass(i), of.lse[i], sum[i] - of.d_lse[i]);
    mark_far(of);
    if constexpr (C.sink) store_dsink_part(p, at, s_dsink);
  }
};

template <BackwardConfig C>
requires ValidBackward<C> TW_DEVICE void prepare_kernel(const BackwardParams& p) {
  ptx::launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.items_taken = 0;
  const RowTile<C> at(p, blockIdx.x);
  if (at.exists()) Preparation<C>{p, at}.run();
}

}  // namespace tilewise::sm90::backward
