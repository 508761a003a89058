// See heads.h.
#include "reference/heads.h"

#include <cmath>

namespace tilewise::reference {
namespace {

struct Side {
  bool packed, has_used;
  const Tensor& cu_seqlens;
  const Tensor& seqused;
  std::int64_t slot;  // rows of every sequence when dense
};

std::int64_t load_index(const Tensor& t, std::int64_t i) {
  return static_cast<std::int64_t>(load_element(t, i * t.strides[0]));
}

Rows rows_of(const Side& side, std::int64_t b) {
  Rows rows{b, 0, b * side.slot, side.slot};
  if (side.packed) {
    rows.first = rows.flat = load_index(side.cu_seqlens, b);
    rows.used = load_index(side.cu_seqlens, b + 1) - rows.first;
  }
  if (side.has_used) rows.used = load_index(side.seqused, b);
  return rows;
}

}  // namespace

Head::Head(const Problem& p, const Inputs& inputs, std::int64_t b, std::int64_t h)
    : problem(p), in(inputs), batch(b), head(h) {
  const Varlen& v = p.varlen;
  q = rows_of({v.cu_seqlens_q, v.seqused_q, in.cu_seqlens_q, in.seqused_q, p.seq_q}, b);
  kv = rows_of({v.cu_seqlens_kv, v.seqused_kv, in.cu_seqlens_kv, in.seqused_kv, p.seq_kv}, b);
  off_ = p.mask.align == Align::kBottomRight ? kv.used - q.used : 0;
  if (p.dropout_p > 0)
    rule_ = {dropout_key(in.dropout_seed, in.dropout_offset), dropout_threshold(p.dropout_p)};
}

double Head::scale() const {
  if (problem.scale) return *problem.scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
}

bool Head::visible(std::int64_t i, std::int64_t j) const {
  const Mask& m = problem.mask;
  const std::int64_t diagonal = i + off_;
  if (m.causal && j > diagonal) return false;
  if (m.left != -1 && diagonal - j > m.left) return false;
  if (m.right != -1 && j - diagonal > m.right) return false;
  return true;
}

double Head::alibi(std::int64_t i, std::int64_t j) const {
  if (problem.alibi == Alibi::kNone) return 0;
  const Tensor& t = in.alibi_slopes;
  const std::int64_t place = problem.alibi == Alibi::kPerHead
                                 ? head * t.strides[0]
                                 : batch * t.strides[0] + head * t.strides[1];
  return -load_element(t, place) * static_cast<double>(std::abs(i + off_ - j));
}

double Head::bias(std::int64_t i, std::int64_t j) const {
  const Bias& b = problem.bias;
  if (!b.present) return 0;
  const auto& s = in.bias.strides;
  return load_element(
      in.bias, (b.broadcast_batch ? 0 : batch * s[0]) + (b.broadcast_heads ? 0 : head * s[1]) +
                   (b.broadcast_q ? 0 : i * s[2]) + (b.broadcast_kv ? 0 : j * s[3]));
}

double Head::sink() const {
  return load_element(in.sink, head * in.sink.strides[0]);
}

double Head::dropout(std::int64_t i, std::int64_t j) const {
  if (rule_.threshold == 0) return 1;
  const bool keep =
      dropout_keep(rule_, static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(head),
                   static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j));
  return keep ? 65536.0 / (65536.0 - rule_.threshold) : 0;
}

std::int64_t Head::lse_index(std::int64_t i) const {
  if (problem.varlen.cu_seqlens_q) return head * problem.varlen.total_q + q.first + i;
  return (batch * problem.heads_q + head) * problem.seq_q + i;
}

std::int64_t Head::bias_index(std::int64_t i, std::int64_t j) const {
  const Bias& b = problem.bias;
  std::int64_t at = b.broadcast_batch ? 0 : batch;
  at = b.broadcast_heads ? at : at * problem.heads_q + head;
  at = b.broadcast_q ? at : at * problem.seq_q + i;
  return b.broadcast_kv ? at : at * problem.seq_kv + j;
}

std::int64_t total_rows_q(const Problem& p) {
  return p.varlen.cu_seqlens_q ? p.varlen.total_q : p.batch * p.seq_q;
}

std::int64_t total_rows_kv(const Problem& p) {
  return p.varlen.cu_seqlens_kv ? p.varlen.total_kv : p.batch * p.seq_kv;
}

std::int64_t bias_elements(const Problem& p) {
  const Bias& b = p.bias;
  if (!b.present) return 0;
  return (b.broadcast_batch ? 1 : p.batch) * (b.broadcast_heads ? 1 : p.heads_q) *
         (b.broadcast_q ? 1 : p.seq_q) * (b.broadcast_kv ? 1 : p.seq_kv);
}

double lse_gradient(const Head& head, const Tensor& d_lse, std::int64_t i) {
  if (!d_lse.given()) return 0;
  const auto& s = d_lse.strides;
  if (d_lse.rank == 2) return load_element(d_lse, head.head * s[0] + (head.q.first + i) * s[1]);
  return load_element(d_lse, head.batch * s[0] + head.head * s[1] + i * s[2]);
}

}  // namespace tilewise::reference
