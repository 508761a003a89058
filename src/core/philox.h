// Philox4x32-10 (Salmon et al., SC 2011), the counter-based generator behind dropout, and the map
// from a score's place (b, h, i, j) to its 16 random bits. The map depends on nothing else, so
// every backend, every tiling, forward and backward see the same mask.
//
// One call yields 8 x 16 bits. It serves rows {i, i+8} and columns {j, j+1, j+8, j+9} of an aligned
// 16 x 16 block: the elements one thread of a tensor-core accumulator holds, in the forward's
// orientation, and half of them in the transposed one of the backward. So a block is 32 calls, one
// a lane: lane = (i % 8) * 4 + (j % 8) / 2.
#pragma once

#include "core/base.h"

namespace tilewise {

struct Philox4 {
  uint32_t w[4];
};

struct PhiloxKey {
  uint32_t k0, k1;
};

TW_HD constexpr Philox4 philox4x32_10(Philox4 c, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.w[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c.w[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.w[1] ^ key.k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.w[3] ^ key.k1, static_cast<uint32_t>(p0)}};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return c;
}

// Folds the 128 bits of (seed, offset) into a key, so that the counter is free for (b, h, i, j).
TW_HD constexpr PhiloxKey dropout_key(uint64_t seed, uint64_t offset) {
  const Philox4 r = philox4x32_10({{static_cast<uint32_t>(offset),
                                    static_cast<uint32_t>(offset >> 32), 0x74696c65u, 0x77697365u}},
                                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {r.w[0], r.w[1]};
}

// p as a multiple of 2^-16: an element is dropped iff its 16 bits are below this.
TW_HD constexpr uint32_t dropout_threshold(float p) {
  const int32_t t = static_cast<int32_t>(p * 65536.0f + 0.5f);
  return static_cast<uint32_t>(min_of(max_of(t, 0), 65535));
}

// What kept probabilities are multiplied with: 1 / (1 - p), p as the threshold holds it.
TW_HD constexpr float dropout_scale(float p) {
  return 65536.0f / static_cast<float>(65536u - dropout_threshold(p));
}

// The call that serves `lane` (0 ... 31) of the 16 x 16 block (i / 16, j / 16).
TW_HD constexpr Philox4 dropout_block(PhiloxKey key, uint32_t batch, uint32_t head,
                                      uint32_t row_block, uint32_t col_block, uint32_t lane) {
  return philox4x32_10({{col_block * 4 + lane % 4, row_block * 8 + lane / 4, head, batch}}, key);
}

// Which 16 bits of its call belong to (i, j): word = row half * 2 + column half, halfword = j % 2.
TW_HD constexpr uint32_t dropout_bits(const Philox4& call, uint32_t i, uint32_t j) {
  const uint32_t word = call.w[(i / 8 % 2) * 2 + j / 8 % 2];
  return j % 2 ? word >> 16 : word & 0xFFFFu;
}

struct DropoutRule {
  PhiloxKey key;
  uint32_t threshold;
};

// The rule for one element.
TW_HD constexpr bool dropout_keep(const DropoutRule& rule, uint32_t b, uint32_t h, uint32_t i,
                                  uint32_t j) {
  const Philox4 call = dropout_block(rule.key, b, h, i / 16, j / 16, (i % 8) * 4 + (j % 8) / 2);
  return dropout_bits(call, i, j) >= rule.threshold;
}

}  // namespace tilewise
