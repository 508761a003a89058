// How the split kernel divides a problem: blocks of queries that share a kv head, splits of the
// keys, and where each split leaves its partial rows.
#pragma once

#include "cpu/head.h"
#include "cpu/job.h"
#include "cpu/kernels/scratch.h"
#include "cpu/tiles.h"

namespace tilewise::cpu {

// Keys of one step: K and V of 64 keys, D = 128, as f32: 64 KiB.
inline constexpr int64_t kSplitKeys = 64;

struct SplitGrid {
  int64_t group;   // query heads of a kv head
  int64_t blocks;  // of queries: heads_kv times those of the longest sequence
  int64_t blocks_per_head;
  int64_t splits;  // of the longest sequence
  int64_t split_keys;
  Span keys_of(int64_t split) const { return {split * split_keys, (split + 1) * split_keys}; }
};
SplitGrid split_grid(const Problem& problem, const PassPlan& pass);

// Queries `begin` ... `end` of one kv head, counted with its query heads inside and Sq outside, so
// that neighbours see nearly the same keys.
struct SplitBlock {
  const Head* heads;  // the query heads of the group
  int64_t group, begin, end;
  int64_t count() const { return end - begin; }
  const Head& head(int64_t r) const { return heads[(begin + r) % group]; }
  int64_t query(int64_t r) const { return (begin + r) / group; }
};
// The part of `keys` that any query of the sequence sees, from a multiple of 16, which dropout
// wants.
Span keys_of_all(const Sequence& seq, const Head& head, Span keys);

struct SplitPlace {
  int64_t sequence, block, split, row;
};

// The partial O and (m, l) of every place.
struct SplitPartials {
  QueryTile all;
  int64_t blocks, splits, rows;
  QueryTile at(const SplitPlace& p) const {
    return all.from_row(((p.sequence * blocks + p.block) * splits + p.split) * rows + p.row);
  }
};
SplitPartials carve_partials(Arena& arena, const Problem& problem, const PassPlan& pass);

// Keys of a head that are worked on before those of the next: 8 heads' rows of 128 numbers are 32
// KiB.
constexpr int64_t few_keys(DType dtype) {
  return 32 / size_of(dtype);
}

// What a thread works on.
struct SplitTiles {
  Head* heads;         // all query heads of a sequence
  SplitBlock* blocks;  // all blocks of it
  bool* hides;         // for each block: do its queries see only part of the tile?
  Matrix q, s;         // for each block: queries x D, queries x kSplitKeys
  Matrix packed;       // few_keys rows of K or V, where they can't be read in place
  Matrix z;            // 16 x keys: dropout factors
  QueryTile whole;     // one query, for the merge
};
SplitTiles carve_split(Arena& arena, const Problem& problem, const PassPlan& pass);
// Fills in heads and blocks.
void make_blocks(const ForwardJob& job, const Sequence& seq, const SplitGrid& grid,
                 const SplitTiles& tiles);
int64_t split_thread_bytes(const Problem& problem, const PassPlan& pass);

}  // namespace tilewise::cpu
