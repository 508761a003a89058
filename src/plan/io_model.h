// The IO model of FlashAttention (Dao et al. 2022, section 3.2): bytes that each loop order moves
// between a fast memory of M bytes and slow memory. docs/io_model.md derives every term;
// tests/test_io_model.cpp counts the same bytes by running core/schedule.h over a fast memory that
// holds M bytes and no more.
#pragma once

#include "plan/tile_visits.h"
#include "tilewise/plan.hpp"

namespace tilewise {

enum class Pass { kForward, kBackward };

// Closed forms, cheap enough for make_plan. Bytes of the whole problem: all heads, all sequences.
// In the backward, "fa1" has keys outside (dK and dV stay, dQ streams) and "fa2" is its mirror
// (dQ stays, dK and dV stream). With cu_seqlens every sequence is taken to have the mean length.
IoModel io_model(const Problem& problem, double fast_memory_bytes, Pass pass = Pass::kForward);

// The tiles that M buys, which io_model takes: the tile that stays is the largest for which all
// that is resident fits, the one that streams has min(D, the other's rows) rows. Never below one
// row, even when M is smaller than one row of everything.
struct IoTiles {
  TileSize standard;       // outer: queries
  TileSize standard_keys;  // outer: keys; the backward's dK and dV products
  TileSize fa1;            // outer: keys
  TileSize fa2;            // outer: queries
};
IoTiles io_tiles(const Problem& problem, double fast_memory_bytes, Pass pass = Pass::kForward);

// FLOPs as papers and benchmarks count them: forward 2 (D + Dv) for each score, causal half of
// them, a window those it leaves; backward 2.5 times the forward.
double nominal_flops(const Problem& problem, Pass pass = Pass::kForward);

}  // namespace tilewise
