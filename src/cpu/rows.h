// Where a kernel finds its rows: one (batch, head) matrix of a tensor, and one sequence of a batch,
// dense or packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/mask.h"
#include "tilewise/attention.hpp"

namespace tilewise::cpu {

// The rows of one head of one sequence: `cols` numbers each, contiguous, `stride` elements apart.
struct Rows {
  std::byte* base = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;
  int64_t cols = 0;
  void* row(int64_t i) const { return base + i * stride * size_of(dtype); }
};

// One sequence. A slot is the room it has in the tensors; its first `used` rows take part.
struct Sequence {
  int64_t batch = 0;
  int64_t q_start = 0, kv_start = 0;  // first row in a packed tensor; 0 in a dense one
  int64_t q_slot = 0, kv_slot = 0;
  int64_t q_used = 0, kv_used = 0;
};

std::vector<Sequence> sequences(const Problem& problem, const Inputs& in);

// Which row space a tensor lives in.
enum class Side { kQuery, kKey };

Rows head_rows(const Problem& problem, const Tensor& t, const Sequence& s, Side side, int64_t head);

BandMask band_of(const Problem& problem, const Sequence& s);

// Statistics are kept for every (sequence, query head, row) in LSE's order: (B, Hq, Sq), or
// (Hq, total_q) when packed.
int64_t stat_index(const Problem& problem, const Sequence& s, int64_t head);
int64_t stat_count(const Problem& problem);

// The caller's f32 LSE or dLSE of one head, at any strides.
struct StatRows {
  float* base = nullptr;
  int64_t stride = 0;
  float& at(int64_t i) const { return base[i * stride]; }
};
StatRows stat_rows(const Problem& problem, const Tensor& t, const Sequence& s, int64_t head);

}  // namespace tilewise::cpu
