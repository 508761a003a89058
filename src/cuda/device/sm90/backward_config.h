// What the kernels of a Hopper backward are compiled for: the key of their cubins, their template
// argument, and what the plan shows. Read by the host and by the device.
//
// Four kernels make a backward: prepare (delta and LSE of each row), replay (delta of rows with
// large logits, again), main (the five products) and finish (dQ from its float32 sums to the
// output's type); a fifth, bias, when dBias is asked for.
#pragma once

#include "cuda/device/sm90/forward_config.h"

namespace tilewise::sm90 {

// In which order the key tiles' parts of dQ are added. kAny: as they come, so that runs differ in
// the last bits. kFixed: by turns (backward_work.h), the same on every run.
enum class Additions { kAny, kFixed };

struct BackwardConfig {
  Element element{};
  int head_dim = 0;    // D of Q and K, rounded up to 64; TMA fills with zeros
  int head_dim_v = 0;  // Dv of V and O, likewise
  int tile_q = 0;      // queries of a step, 64 or 128
  int tile_kv = 0;     // keys of a CTA: 128, or 64 if wide
  int q_stages = 2;    // of the ring of Q and LSE
  int do_stages = 2;   // of the ring of dO and delta
  Band band = Band::kFull;
  Additions additions = Additions::kAny;
  // One consumer gathers dV, the other dK, of the same keys (backward_wide.h): for head dims of
  // which no consumer can hold both, and for scores that take registers to modify.
  bool wide = false;
  bool varlen = false;  // cu_seqlens or seqused
  bool softcap = false;
  bool alibi = false;
  BiasType bias = BiasType::kNone;
  bool sink = false;
  bool dropout = false;

  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kRowThreads = 256;        // of prepare and finish
  static constexpr int kRecomputeThreads = 128;  // of replay and bias
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  TW_HD constexpr bool modifies_scores() const {
    return softcap || alibi || bias != BiasType::kNone;
  }
  // dQ of a tile, tile_q x head_dim, is summed in blocks of 64 x 64.
  TW_HD constexpr int dq_panels() const { return head_dim / 64; }
  TW_HD constexpr int dq_blocks() const { return tile_q / 64 * dq_panels(); }
  // Block b is made by consumer b % 2.
  TW_HD constexpr int dq_blocks_of(int consumer) const { return (dq_blocks() + 1 - consumer) / 2; }
  TW_HD constexpr int dq_rounds() const { return dq_blocks_of(0); }
  TW_HD constexpr int dq_elements() const { return tile_q * head_dim; }
  // The blocks that lie in shared memory on their way out: one for each consumer.
  static constexpr int kDqBlockBytes = 64 * 64 * 4;

  TW_HD constexpr int smem_bytes() const {
    const int d = head_dim * 2, dv = head_dim_v * 2;
    const int handed_over = wide ? tile_q * tile_kv * 2 : 0;  // P
    return tile_kv * (d + dv) + q_stages * tile_q * (d + 4) + do_stages * tile_q * (dv + 4) +
           2 * tile_q * tile_kv * 2 + kConsumers * kDqBlockBytes + handed_over + kControlBytes;
  }

  TW_HD constexpr int recompute_smem_bytes() const {
    return (tile_q + tile_kv) * (head_dim + head_dim_v) * 2 + 10 * tile_q * 4 + 64;
  }

  static constexpr int kControlBytes = 1024;  // barriers and work items
  static constexpr int kMaxSmemBytes = 227 * 1024;
};

// Null when kernels can be made for the config, else the rule that it breaks.
TW_HD constexpr const char* why_not(const BackwardConfig& c) {
  if (c.head_dim % 64 || c.head_dim < 64 || c.head_dim > 256) return "head_dim is 64 to 256, by 64";
  if (c.head_dim_v % 64 || c.head_dim_v < 64 || c.head_dim_v > 256)
    return "head_dim_v is 64 to 256, by 64";
  if (c.tile_q != 64 && c.tile_q != 128) return "tile_q is 64 or 128";
  if (c.tile_kv != (c.wide ? 64 : 128)) return "tile_kv is 128, or 64 if wide";
  if (!c.wide && (c.head_dim > 128 || c.head_dim_v > 128 || c.modifies_scores() || c.dropout))
    return "head dims above 128, modified scores and dropout need a wide kernel";
  if (!c.wide && c.dq_blocks() != 2) return "dQ of a tile is one block of 64 x 64 a consumer";
  if (c.wide && c.tile_q != 64) return "tile_q is 64 if wide";
  if (c.q_stages < 1 || c.q_stages > 4 || c.do_stages < 1 || c.do_stages > 4)
    return "stages are 1 to 4";
  if (c.smem_bytes() > BackwardConfig::kMaxSmemBytes) return "the tiles exceed 227 KiB";
  return nullptr;
}

template <BackwardConfig C>
concept ValidBackward = why_not(C)
== nullptr;

}  // namespace tilewise::sm90
