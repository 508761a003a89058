// One (sequence, query head) of a problem: where its rows lie and how its raw products become
// logits. The constants of the score function are resolved here, once for a head.
#pragma once

#include "core/mask.h"
#include "core/philox.h"
#include "core/softmax_state.h"
#include "cpu/rows.h"

namespace tilewise::cpu {

// A row of additive bias: `stride` is 0 where the key dimension is broadcast.
struct BiasRows {
  std::byte* base = nullptr;
  DType dtype = DType::kF32;
  int64_t q_stride = 0, kv_stride = 0;
  void* row(int64_t i) const { return base + i * q_stride * size_of(dtype); }
};

// The logit is alibi(softcap(scale * q . k)) + bias. Kernels hold it as s, the logit being natural
// * s: without any of those terms s is the bare product and natural = scale, else natural = 1.
// Products are never multiplied before their maximum is subtracted: that would round away what
// tells two large logits apart, and carry a bias near the dtype's limits over them.
struct Score {
  BandMask mask;
  bool plain = true;
  float scale = 1;
  float natural = 1;  // positive
  float unit = 1;     // natural * log2(e): exp(logit - max logit) = exp2((s - max s) * unit)
  float slack = 1;    // 8 / unit: how far a row's scores may pass its maximum (simd/score-inl.h)
  float lowest = 0;   // -125 / unit: how far below it a weight is nothing (simd/exp2-inl.h)
  float softcap = 0;
  float slope = 0;
  int64_t off = 0;  // the diagonal, for ALiBi
  BiasRows bias;
  float sink = kMinusInf;  // -inf: none
  DropoutRule dropout{};   // threshold 0: off
  float keep_scale = 1;
  uint32_t batch = 0, head = 0;
};

struct Head {
  Sequence seq;
  int64_t head = 0;
  Score score;
  Rows q, k, v;
};

Head make_head(const Problem& problem, const Inputs& in, const Sequence& seq, int64_t head);

// The scale in force: 1/sqrt(D) unless the problem names one.
float scale_of(const Problem& problem);

// The bias tensor's address arithmetic, also used for dbias.
BiasRows bias_rows(const Tensor& bias, int64_t batch, int64_t head);

}  // namespace tilewise::cpu
