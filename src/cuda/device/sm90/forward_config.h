// What a Hopper forward kernel is compiled for. One value of ForwardConfig is one kernel: it is
// the key of the cubin, the template argument of the kernel, and what the plan shows. Read by the
// host and by the device.
#pragma once

#include "core/base.h"
#include "cuda/device/element.h"

namespace tilewise::sm90 {

// Which ends of a row's keys a mask may cut. The end of the sequence is always handled.
enum class Band { kFull, kRight, kBoth };

// The order in which work items are handed out: as they come, or from the last tile to the first of
// many heads at once: longest first, if the mask is causal.
enum class Order { kLinear, kLongestFirst };

enum class BiasType { kNone, kF32, kF16, kBf16 };

struct ForwardConfig {
  Element element{};
  int head_dim = 0;      // D of Q and K, rounded up to 16; TMA fills with zeros
  int head_dim_v = 0;    // Dv of V and O, likewise
  int tile_q = 0;        // query rows of a CTA, 64 for each consumer warpgroup
  int tile_kv = 0;       // keys of a step, a multiple of 16
  int packed_heads = 1;  // query heads of one kv head that share a tile: row r is head r % this
  int stages = 2;        // of the K ring and of the V ring
  int q_stages = 1;      // 2: the next tile's Q is loaded while this one is read
  Band band = Band::kFull;
  Order order = Order::kLinear;
  bool q_in_registers = false;  // D/4 registers a thread, for a third less shared-memory traffic
  bool ping_pong = true;        // consumers take turns at issuing products
  int polynomial_of_8 = 0;      // of 8 exponentials, how many run on the FMA units
  bool varlen = false;          // cu_seqlens or seqused
  bool general_scale = false;   // scale <= 0: it can't be folded into the maximum
  bool softcap = false;
  bool alibi = false;
  BiasType bias = BiasType::kNone;
  bool bias_pairs = false;  // two neighbouring keys' bias can be loaded at once
  bool sink = false;
  bool dropout = false;

  TW_HD constexpr int consumers() const { return tile_q / 64; }
  // Queries of a tile; rows that don't divide evenly among the packed heads stay empty.
  TW_HD constexpr int tile_queries() const { return tile_q / packed_heads; }
  TW_HD constexpr int threads() const { return 128 * (consumers() + 1); }
  // 65536 registers shared by producer and consumers; what the kernel is entered with lies between.
  TW_HD constexpr int consumer_registers() const {
    return consumers() == 1 ? 256 : consumers() == 2 ? 240 : 160;
  }
  TW_HD constexpr int producer_registers() const {
    return consumers() == 1 ? 56 : consumers() == 2 ? 24 : 32;
  }
  // Scores are brought to log2 units one by one, instead of in the subtraction before exp2.
  TW_HD constexpr bool scales_scores() const {
    return (general_scale && !softcap) || alibi || bias != BiasType::kNone;
  }
  // ALiBi is part of the products (attention/alibi.h), if it is all there is to do.
  TW_HD constexpr bool defers_alibi() const {
    return alibi && !softcap && bias == BiasType::kNone && !general_scale;
  }
  TW_HD constexpr int column_number_bytes() const {
    return defers_alibi() ? round_up(tile_kv * 16, 1024) : 0;
  }
  TW_HD constexpr int smem_bytes() const {
    const int d = round_up(head_dim, 64) * 2, dv = round_up(head_dim_v, 64) * 2;
    return q_stages * tile_q * d + column_number_bytes() + stages * tile_kv * (d + dv) +
           kControlBytes;
  }

  static constexpr int kControlBytes = 1024;  // barriers and work items
  static constexpr int kMaxSmemBytes = 227 * 1024;
};

// Null when a kernel can be made for the config, else the rule that it breaks.
TW_HD constexpr const char* why_not(const ForwardConfig& c) {
  if (c.tile_q % 64 || c.consumers() < 1 || c.consumers() > 3) return "tile_q is 64, 128 or 192";
  if (c.tile_kv % 16 || c.tile_kv < 16 || c.tile_kv > 256) return "tile_kv is 16 to 256, by 16";
  if (c.head_dim % 16 || c.head_dim < 16 || c.head_dim > 256) return "head_dim is 16 to 256, by 16";
  if (c.head_dim_v % 16 || c.head_dim_v < 16 || c.head_dim_v > 256)
    return "head_dim_v is 16 to 256, by 16";
  if (c.stages < 2 || c.stages > 8 || c.q_stages < 1 || c.q_stages > 2)
    return "stages is 2 to 8, q_stages 1 or 2";
  if (c.packed_heads < 1 || c.packed_heads > 64) return "packed_heads is 1 to 64";
  if (c.packed_heads > 1 && c.dropout) return "dropout takes rows of one head";
  if (c.band != Band::kFull && ceil_div(c.tile_q - 64, c.tile_kv) > 2)
    return "consumers may be at most 2 key tiles apart";
  if (c.smem_bytes() > ForwardConfig::kMaxSmemBytes) return "the tiles exceed 227 KiB";
  return nullptr;
}

template <ForwardConfig C>
concept Valid = why_not(C)
== nullptr;

}  // namespace tilewise::sm90
