// Every loop order is one row of prices: what a row or a score holds of fast memory, and what it
// moves to or from slow memory. Then, for each head,
//   bytes = moved by rows that stay + rows streamed x price + scores visited x price + apart.
// The prices are those of docs/io_model.md, in bytes; e, eo are the bytes of an element of the
// inputs and of O. Scores, running O, statistics and gradient sums are float32.
#include "plan/io_model.h"

#include <cmath>

namespace tilewise {
namespace {

constexpr double kAcc = 4;    // bytes of a float32 accumulator, score or probability
constexpr double kStats = 8;  // a row's (max, sum), or its (LSE, delta)

// One sequence as the model sees it, and the bytes of one row of each tensor.
struct Shape {
  BandMask mask;
  double batch, heads_q, heads_kv, head_dim;
  double q, k, v, o;  // e D, e D, e Dv, eo Dv
  double acc_qk;      // a float32 row as long as Q's: dQ, dK
  double acc_v;       // a float32 row as long as V's: O, dV
  double bias;        // of one score, when the bias has both sequence dimensions
};

struct LoopOrder {
  enum class Outer { kQueries, kKeys } outer;
  // Fast memory held by a row that stays, a row that streams, a score of the tile.
  double kept, streamed, score;
  // Slow traffic of a row that stays (once), a row that streams (each visit), a score visited.
  double kept_moved, streamed_moved, score_moved;
  // Slow traffic outside the walk, a query row of one head and a key row of one kv head.
  double apart_q = 0, apart_kv = 0;
};

double mean_length(std::int64_t longest, bool packed, std::int64_t total, std::int64_t batch) {
  if (!packed || batch <= 0) return static_cast<double>(longest);
  return std::round(static_cast<double>(total) / static_cast<double>(batch));
}

Shape shape_of(const Problem& p) {
  const double e = static_cast<double>(size_of(p.dtype));
  const double eo = static_cast<double>(size_of(p.out_dtype.value_or(p.dtype)));
  const double d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.head_dim_v);
  const Varlen& var = p.varlen;
  const double seq_q = mean_length(p.seq_q, var.cu_seqlens_q, var.total_q, p.batch);
  const double seq_kv = mean_length(p.seq_kv, var.cu_seqlens_kv, var.total_kv, p.batch);
  Shape s{};
  s.mask = make_band({static_cast<int64_t>(seq_q), static_cast<int64_t>(seq_kv), p.mask.causal,
                      p.mask.left, p.mask.right, p.mask.align == Align::kBottomRight});
  s.batch = static_cast<double>(p.batch);
  s.heads_q = static_cast<double>(p.heads_q);
  s.heads_kv = static_cast<double>(p.heads_kv);
  s.head_dim = d;
  s.q = s.k = e * d;
  s.v = e * dv;
  s.o = eo * dv;
  s.acc_qk = kAcc * d;
  s.acc_v = kAcc * dv;
  const bool whole = p.bias.present && !p.bias.broadcast_q && !p.bias.broadcast_kv;
  s.bias = whole ? static_cast<double>(size_of(p.bias.dtype)) : 0;
  return s;
}

// Q, O and the statistics stay; K and V stream.
LoopOrder forward_fa2(const Shape& s) {
  return {.outer = LoopOrder::Outer::kQueries,
          .kept = s.q + s.acc_v + kStats,
          .streamed = s.k + s.v,
          .score = kAcc + s.bias,
          .kept_moved = s.q + s.o + kAcc,
          .streamed_moved = s.k + s.v,
          .score_moved = s.bias};
}

// K and V stay; Q streams, and the running O and statistics stream in and out.
LoopOrder forward_fa1(const Shape& s) {
  const double running = s.acc_v + kStats;
  return {.outer = LoopOrder::Outer::kKeys,
          .kept = s.k + s.v,
          .streamed = s.q + running,
          .score = kAcc + s.bias,
          .kept_moved = s.k + s.v,
          .streamed_moved = s.q + 2 * running,
          .score_moved = s.bias,
          .apart_q = running + (running + s.o + kAcc)};  // start at zero; finish O and LSE
}

// S = Q K^T by row panels and written, P = softmax(S) read and written, O = P V by row panels.
LoopOrder forward_standard(const Shape& s, double fast_memory_bytes) {
  const bool row_fits = kAcc * static_cast<double>(s.mask.seq_kv) <= fast_memory_bytes;
  const double softmax_reads = row_fits ? 1 : 2;  // statistics first, then the quotient
  return {.outer = LoopOrder::Outer::kQueries,
          .kept = std::fmax(s.q, s.acc_v),
          .streamed = std::fmax(s.k, s.v),
          .score = kAcc + s.bias,
          .kept_moved = s.q + s.o + kAcc,
          .streamed_moved = s.k + s.v,
          .score_moved = kAcc + s.bias + (softmax_reads + 1) * kAcc + kAcc};
}

// Before the tiled backward: delta = rowsum(O dO), from two rows to one number.
double delta_moved(const Shape& s) {
  return 2 * s.o + kAcc;
}

// K, V, dK, dV stay; Q, dO, the statistics and the running dQ stream. Scores: P and dS.
LoopOrder backward_fa1(const Shape& s) {
  return {.outer = LoopOrder::Outer::kKeys,
          .kept = s.k + s.v + s.acc_qk + s.acc_v,
          .streamed = s.q + s.o + kStats + s.acc_qk,
          .score = 2 * kAcc + s.bias,
          .kept_moved = 2 * (s.k + s.v),
          .streamed_moved = s.q + s.o + kStats + 2 * s.acc_qk,
          .score_moved = s.bias,
          .apart_q = delta_moved(s) + s.acc_qk + (s.acc_qk + s.q)};  // dQ starts, dQ is rounded
}

// Q, dO, the statistics and dQ stay; K, V and the running dK, dV stream.
LoopOrder backward_fa2(const Shape& s) {
  const double running = s.acc_qk + s.acc_v;
  return {.outer = LoopOrder::Outer::kQueries,
          .kept = s.q + s.o + kStats + s.acc_qk,
          .streamed = s.k + s.v + running,
          .score = 2 * kAcc + s.bias,
          .kept_moved = 2 * s.q + s.o + kStats,
          .streamed_moved = s.k + s.v + 2 * running,
          .score_moved = s.bias,
          .apart_q = delta_moved(s),
          .apart_kv = running + (running + s.k + s.v)};
}

// S and dP by row panels and written; P and dS from them (read two, write two); dQ = dS K.
LoopOrder backward_standard_queries(const Shape& s) {
  return {.outer = LoopOrder::Outer::kQueries,
          .kept = std::fmax(s.q + s.o, s.acc_qk),
          .streamed = s.k + s.v,
          .score = kAcc + s.bias,
          .kept_moved = (s.q + s.o) + (2 * s.o + kAcc) + s.q,
          .streamed_moved = (s.k + s.v) + s.k,
          .score_moved = 2 * kAcc + s.bias + 4 * kAcc + kAcc};
}

// dV = P^T dO and dK = dS^T Q, by panels of keys.
LoopOrder backward_standard_keys(const Shape& s) {
  return {.outer = LoopOrder::Outer::kKeys,
          .kept = s.acc_qk + s.acc_v,
          .streamed = s.q + s.o,
          .score = kAcc,
          .kept_moved = s.k + s.v,
          .streamed_moved = s.q + s.o,
          .score_moved = 2 * kAcc};
}

// The mask as the order's outer loop sees it.
BandMask oriented(const LoopOrder& order, const BandMask& mask) {
  return order.outer == LoopOrder::Outer::kQueries ? mask : transposed(mask);
}

BandMask without_mask(const BandMask& mask) {
  return {mask.seq_q, mask.seq_kv};
}

// The largest H with H kept + R streamed + H R score <= M, R = min(H, D, rows there are): linear in
// H once R has stopped growing, quadratic before.
TileSize fit_tile(const LoopOrder& order, const Shape& s, double fast_memory_bytes) {
  const BandMask mask = oriented(order, s.mask);
  const double cap = std::fmax(1, std::fmin(s.head_dim, static_cast<double>(mask.seq_kv)));
  double rows = (fast_memory_bytes - cap * order.streamed) / (order.kept + cap * order.score);
  if (rows < cap) {
    const double linear = order.kept + order.streamed;
    const double root = std::sqrt(linear * linear + 4 * order.score * fast_memory_bytes);
    rows = (root - linear) / (2 * order.score);
  }
  rows = std::fmin(std::floor(rows), static_cast<double>(mask.seq_q));
  rows = std::fmax(rows, 1);
  return {static_cast<int64_t>(rows), static_cast<int64_t>(std::fmin(rows, cap))};
}

double price(const LoopOrder& order, const Shape& s, const BandMask& visible, TileSize tile) {
  const bool by_query = order.outer == LoopOrder::Outer::kQueries;
  const Visits visits = count_visits(oriented(order, visible), tile);
  const double q_rows = s.heads_q * static_cast<double>(visible.seq_q);
  const double kv_rows = s.heads_kv * static_cast<double>(visible.seq_kv);
  const double head = order.streamed_moved * visits.inner_rows + order.score_moved * visits.scores;
  return s.batch * (order.kept_moved * (by_query ? q_rows : kv_rows) + s.heads_q * head +
                    order.apart_q * q_rows + order.apart_kv * kv_rows);
}

// Every input read once and every output written once.
double least_bytes(const Problem& p, const Shape& s, Pass pass) {
  const Varlen& var = p.varlen;
  const double rows_q =
      var.cu_seqlens_q ? static_cast<double>(var.total_q) : s.batch * static_cast<double>(p.seq_q);
  const double rows_kv = var.cu_seqlens_kv ? static_cast<double>(var.total_kv)
                                           : s.batch * static_cast<double>(p.seq_kv);
  const double bias_heads =
      (p.bias.broadcast_batch ? 1 : s.batch) * (p.bias.broadcast_heads ? 1 : s.heads_q);
  const double bias =
      s.bias * bias_heads * static_cast<double>(s.mask.seq_q) * static_cast<double>(s.mask.seq_kv);
  const double q_row = pass == Pass::kForward ? s.q + s.o + kAcc : 2 * (s.q + s.o) + kAcc;
  const double kv_row = (pass == Pass::kForward ? 1 : 2) * (s.k + s.v);
  return s.heads_q * rows_q * q_row + s.heads_kv * rows_kv * kv_row + bias;
}

}  // namespace

IoTiles io_tiles(const Problem& problem, double fast_memory_bytes, Pass pass) {
  const Shape s = shape_of(problem);
  const double m = fast_memory_bytes;
  if (pass == Pass::kForward)
    return {.standard = fit_tile(forward_standard(s, m), s, m),
            .standard_keys = {},
            .fa1 = fit_tile(forward_fa1(s), s, m),
            .fa2 = fit_tile(forward_fa2(s), s, m)};
  return {.standard = fit_tile(backward_standard_queries(s), s, m),
          .standard_keys = fit_tile(backward_standard_keys(s), s, m),
          .fa1 = fit_tile(backward_fa1(s), s, m),
          .fa2 = fit_tile(backward_fa2(s), s, m)};
}

IoModel io_model(const Problem& problem, double fast_memory_bytes, Pass pass) {
  const Shape s = shape_of(problem);
  const IoTiles tiles = io_tiles(problem, fast_memory_bytes, pass);
  const BandMask whole = without_mask(s.mask);  // standard computes every score
  IoModel io;
  io.fast_memory_bytes = fast_memory_bytes;
  io.least_bytes = least_bytes(problem, s, pass);
  if (pass == Pass::kForward) {
    io.standard_bytes = price(forward_standard(s, fast_memory_bytes), s, whole, tiles.standard);
    io.fa1_bytes = price(forward_fa1(s), s, s.mask, tiles.fa1);
    io.fa2_bytes = price(forward_fa2(s), s, s.mask, tiles.fa2);
  } else {
    io.standard_bytes = price(backward_standard_queries(s), s, whole, tiles.standard) +
                        price(backward_standard_keys(s), s, whole, tiles.standard_keys);
    io.fa1_bytes = price(backward_fa1(s), s, s.mask, tiles.fa1);
    io.fa2_bytes = price(backward_fa2(s), s, s.mask, tiles.fa2);
  }
  return io;
}

double nominal_flops(const Problem& problem, Pass pass) {
  const Shape s = shape_of(problem);
  const bool window = problem.mask.left >= 0 || problem.mask.right >= 0;
  double scores = static_cast<double>(s.mask.seq_q) * static_cast<double>(s.mask.seq_kv);
  if (window) {
    scores = count_visits(s.mask, {1, 1}).scores;
  } else if (problem.mask.causal) {
    scores /= 2;
  }
  const double forward = 2 * static_cast<double>(problem.head_dim + problem.head_dim_v) * scores;
  return (pass == Pass::kForward ? 1 : 2.5) * s.batch * s.heads_q * forward;
}

}  // namespace tilewise
