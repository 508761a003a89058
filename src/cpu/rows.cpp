#include "cpu/rows.h"

namespace tilewise::cpu {
namespace {

int32_t i32_at(const Tensor& t, int64_t i) {
  return static_cast<const int32_t*>(t.data)[i * t.strides[0]];
}

struct Slot {
  int64_t start, length;
};

Slot slot(const Tensor& cu_seqlens, int64_t b, int64_t dense_length) {
  if (!cu_seqlens.given()) return {0, dense_length};
  return {i32_at(cu_seqlens, b), i32_at(cu_seqlens, b + 1) - i32_at(cu_seqlens, b)};
}

}  // namespace

std::vector<Sequence> sequences(const Problem& problem, const Inputs& in) {
  std::vector<Sequence> out;
  out.reserve(problem.batch);
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Slot q = slot(in.cu_seqlens_q, b, problem.seq_q);
    const Slot kv = slot(in.cu_seqlens_kv, b, problem.seq_kv);
    out.push_back({b, q.start, kv.start, q.length, kv.length,
                   in.seqused_q.given() ? i32_at(in.seqused_q, b) : q.length,
                   in.seqused_kv.given() ? i32_at(in.seqused_kv, b) : kv.length});
  }
  return out;
}

Rows head_rows(const Problem& problem, const Tensor& t, const Sequence& s, Side side,
               int64_t head) {
  const bool packed =
      side == Side::kQuery ? problem.varlen.cu_seqlens_q : problem.varlen.cu_seqlens_kv;
  const int64_t start = side == Side::kQuery ? s.q_start : s.kv_start;
  const int64_t first = packed ? start * t.strides[0] + head * t.strides[1]
                               : s.batch * t.strides[0] + head * t.strides[2];
  return {static_cast<std::byte*>(t.data) + first * size_of(t.dtype), t.dtype,
          packed ? t.strides[0] : t.strides[1], t.rank > 0 ? t.shape[t.rank - 1] : 0};
}

BandMask band_of(const Problem& problem, const Sequence& s) {
  const Mask& m = problem.mask;
  return make_band(
      {s.q_used, s.kv_used, m.causal, m.left, m.right, m.align == Align::kBottomRight});
}

int64_t stat_index(const Problem& problem, const Sequence& s, int64_t head) {
  return problem.varlen.cu_seqlens_q ? head * problem.varlen.total_q + s.q_start
                                     : (s.batch * problem.heads_q + head) * problem.seq_q;
}

int64_t stat_count(const Problem& problem) {
  return problem.heads_q *
         (problem.varlen.cu_seqlens_q ? problem.varlen.total_q : problem.batch * problem.seq_q);
}

StatRows stat_rows(const Problem& problem, const Tensor& t, const Sequence& s, int64_t head) {
  float* data = static_cast<float*>(t.data);
  if (problem.varlen.cu_seqlens_q)
    return {data + head * t.strides[0] + s.q_start * t.strides[1], t.strides[1]};
  return {data + s.batch * t.strides[0] + head * t.strides[1], t.strides[2]};
}

}  // namespace tilewise::cpu
