#include "cpu/head.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tilewise::cpu {

float scale_of(const Problem& problem) {
  return problem.scale ? *problem.scale
                       : static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
}

BiasRows bias_rows(const Tensor& bias, int64_t batch, int64_t head) {
  auto stride = [&](int dim) { return bias.shape[dim] == 1 ? int64_t{0} : bias.strides[dim]; };
  const int64_t first = batch * stride(0) + head * stride(1);
  return {static_cast<std::byte*>(bias.data) + first * size_of(bias.dtype), bias.dtype, stride(2),
          stride(3)};
}

namespace {

float slope_of(const Problem& problem, const Inputs& in, const Sequence& seq, int64_t head) {
  const Tensor& t = in.alibi_slopes;
  const float* slopes = static_cast<const float*>(t.data);
  switch (problem.alibi) {
    case Alibi::kNone:
      return 0;
    case Alibi::kPerHead:
      return slopes[head * t.strides[0]];
    case Alibi::kPerBatchAndHead:
      return slopes[seq.batch * t.strides[0] + head * t.strides[1]];
  }
  return 0;
}

}  // namespace

Head make_head(const Problem& problem, const Inputs& in, const Sequence& seq, int64_t head) {
  const int64_t kv_head = head / (problem.heads_q / problem.heads_kv);
  Score s;
  s.mask = band_of(problem, seq);
  s.scale = scale_of(problem);
  // A factor of 0 or less would turn -inf around, and a tiny one would take an LSE out of range.
  s.plain = problem.softcap == 0 && problem.alibi == Alibi::kNone && !problem.bias.present &&
            !problem.sink && s.scale > 1e-6f;
  s.natural = s.plain ? s.scale : 1.0f;
  s.unit = static_cast<float>(s.natural * 1.4426950408889634);
  s.slack = 8.0f / s.unit;
  s.lowest = std::max(-125.0f / s.unit, std::numeric_limits<float>::lowest());  // above -inf
  s.softcap = problem.softcap;
  s.slope = slope_of(problem, in, seq, head);
  s.off = problem.mask.align == Align::kBottomRight ? seq.kv_used - seq.q_used : 0;
  if (problem.bias.present) s.bias = bias_rows(in.bias, seq.batch, head);
  if (problem.sink) s.sink = static_cast<const float*>(in.sink.data)[head * in.sink.strides[0]];
  s.dropout = {dropout_key(in.dropout_seed, in.dropout_offset),
               dropout_threshold(problem.dropout_p)};
  s.keep_scale = dropout_scale(problem.dropout_p);
  s.batch = static_cast<uint32_t>(seq.batch);
  s.head = static_cast<uint32_t>(head);
  Head out = {seq,
              head,
              s,
              head_rows(problem, in.q, seq, Side::kQuery, head),
              head_rows(problem, in.k, seq, Side::kKey, kv_head),
              head_rows(problem, in.v, seq, Side::kKey, kv_head)};
  // An empty tensor need not be given, so the sizes come from the problem.
  out.q.cols = out.k.cols = problem.head_dim;
  out.v.cols = problem.head_dim_v;
  return out;
}

}  // namespace tilewise::cpu
