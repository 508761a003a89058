// The one mask type. It owns the predicate keep(q, k), the keys a query tile must visit, the
// queries a key tile must visit, and the class of a tile. CPU kernels, GPU kernels, the plan and
// the IO model all ask here; a property test holds the ranges against brute force over keep().
//
// Every mask of the library is a band: key k is visible to query q iff
//   max(0, q + lo) <= k <= min(seq_kv - 1, q + hi)
#pragma once

#include "core/base.h"

namespace tilewise {

struct Span {
  int64_t begin = 0;
  int64_t end = 0;  // exclusive; begin == end: nothing
  TW_HD constexpr bool empty() const { return begin >= end; }
  TW_HD constexpr int64_t size() const { return empty() ? 0 : end - begin; }
};

enum class TileClass { kEmpty, kFull, kPartial };

// Far beyond any sequence, yet q + kUnbounded can't overflow.
inline constexpr int64_t kUnbounded = int64_t{1} << 61;

struct BandMask {
  int64_t seq_q = 0;
  int64_t seq_kv = 0;
  int64_t lo = -kUnbounded;  // k - q at least
  int64_t hi = kUnbounded;   // k - q at most

  TW_HD constexpr bool keep(int64_t q, int64_t k) const {
    return q >= 0 && q < seq_q && k >= 0 && k < seq_kv && k - q >= lo && k - q <= hi;
  }

  // The keys that one query sees.
  TW_HD constexpr Span row(int64_t q) const { return clip(q + lo, q + hi + 1, seq_kv); }

  // The smallest range that holds every key visible to a query of `q`.
  TW_HD constexpr Span keys_of(Span q) const {
    q = clip(q.begin, q.end, seq_q);
    if (q.empty()) return {};
    // The rows' ranges move right together, so first and last row bound the union; rows that see
    // nothing (off either end of the keys) are clipped to empty ends.
    return clip(q.begin + lo, q.end - 1 + hi + 1, seq_kv);
  }

  // The smallest range that holds every query that sees a key of `k`.
  TW_HD constexpr Span queries_of(Span k) const {
    k = clip(k.begin, k.end, seq_kv);
    if (k.empty()) return {};
    return clip(k.begin - hi, k.end - 1 - lo + 1, seq_q);
  }

  // The keys that every query of `q` sees: tiles inside it need no mask code.
  TW_HD constexpr Span keys_common_to(Span q) const {
    q = clip(q.begin, q.end, seq_q);
    if (q.empty()) return {};
    return clip(q.end - 1 + lo, q.begin + hi + 1, seq_kv);
  }

  // Full: every (query, key) of the tile is visible; empty: none is.
  TW_HD constexpr TileClass classify(Span q, Span k) const {
    if (q.empty() || k.empty() || q.begin >= seq_q || k.begin >= seq_kv) return TileClass::kEmpty;
    const int64_t q_last = min_of(q.end, seq_q) - 1, k_last = min_of(k.end, seq_kv) - 1;
    if (lo > hi || k_last - q.begin < lo || k.begin - q_last > hi) return TileClass::kEmpty;
    const bool inside = q.end <= seq_q && k.end <= seq_kv;
    const bool banded = k.begin - q_last >= lo && k_last - q.begin <= hi;
    return inside && banded ? TileClass::kFull : TileClass::kPartial;
  }

 private:
  TW_HD static constexpr Span clip(int64_t begin, int64_t end, int64_t size) {
    begin = max_of(begin, int64_t{0});
    end = min_of(end, size);
    return begin < end ? Span{begin, end} : Span{};
  }
};

// design: causal is right = 0; -1 is unbounded; off moves the diagonal to the bottom right.
struct MaskShape {
  int64_t seq_q, seq_kv;
  bool causal;
  int64_t left, right;
  bool bottom_right;
};

TW_HD constexpr BandMask make_band(const MaskShape& m) {
  const int64_t off = m.bottom_right ? m.seq_kv - m.seq_q : 0;
  BandMask band{m.seq_q, m.seq_kv};
  if (m.left >= 0 && m.left < kUnbounded / 2) band.lo = off - m.left;
  if (m.right >= 0 && m.right < kUnbounded / 2) band.hi = off + m.right;
  if (m.causal) band.hi = off;
  return band;
}

}  // namespace tilewise
