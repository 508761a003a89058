// Problem: everything that decides what is computed, and no pointer. For every head and query i
//
//   s_j = alibi(softcap(scale * q_i . k_j)) + bias_ij      for every key j that the mask lets i see
//   O_i = sum_j exp(s_j - LSE_i) v_j,  LSE_i = log(sum_j exp(s_j) [+ exp(sink)])
//
// without ever holding the Sq x Sk matrix s. See docs/semantics.md for each term.
#pragma once

#include <cstdint>
#include <optional>

#include "tilewise/tensor.hpp"

namespace tilewise {

// Where the diagonal lies: `off` = Sk - Sq (bottom-right) or 0 (top-left). Causal, window and ALiBi
// all measure distance as j - (i + off).
enum class Align : std::uint8_t { kBottomRight, kTopLeft };

// Key j is visible to query i iff  i + off - left <= j <= i + off + right ; -1 means unbounded.
// `causal` intersects that with right = 0.
struct Mask {
  bool causal = false;
  std::int64_t left = -1;
  std::int64_t right = -1;
  Align align = Align::kBottomRight;
};

// An additive bias of shape (B, Hq, Sq, Sk); a dimension marked here has extent 1 and is broadcast.
struct Bias {
  bool present = false;
  bool broadcast_batch = false;
  bool broadcast_heads = false;
  bool broadcast_q = false;
  bool broadcast_kv = false;
  DType dtype = DType::kF32;
};

enum class Alibi : std::uint8_t { kNone, kPerHead, kPerBatchAndHead };  // slopes (Hq) or (B, Hq)

// Dense tensors are (B, S, H, D). With cu_seqlens the B sequences lie end to end in (total, H, D)
// and seq_q / seq_kv are upper bounds for the longest. seqused gives each sequence's length inside
// its slot; rows past it are written as rows that see nothing (O = 0, LSE = -inf) and never read.
struct Varlen {
  bool cu_seqlens_q = false;
  bool cu_seqlens_kv = false;
  bool seqused_q = false;
  bool seqused_kv = false;
  std::int64_t total_q = 0;   // rows of packed Q, with cu_seqlens_q
  std::int64_t total_kv = 0;  // rows of packed K and V, with cu_seqlens_kv
};

inline constexpr std::int64_t kMaxHeadDim = 512;

struct Problem {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  // Divides heads_q; query head h reads kv head h / (heads_q / heads_kv).
  std::int64_t heads_kv = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;
  std::int64_t head_dim = 0;       // D of Q and K, 1 to 512
  std::int64_t head_dim_v = 0;     // Dv of V and O, 1 to 512
  DType dtype = DType::kF32;       // of Q, K and V: f32, f16 or bf16
  std::optional<DType> out_dtype;  // of O; the input dtype when not given

  std::optional<float> scale;  // finite; 1/sqrt(head_dim) when not given
  float softcap = 0.0f;        // c in c * tanh(s / c); 0 is off
  Mask mask;
  Alibi alibi = Alibi::kNone;
  Bias bias;
  bool sink = false;       // one learnable logit per query head that joins the denominator only
  float dropout_p = 0.0f;  // in [0, 1), held to the nearest multiple of 2^-16
  Varlen varlen;
};

}  // namespace tilewise
