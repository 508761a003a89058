// A band sees, from the query tile of rows [t Br, t Br + Br), the keys [t Br + lo, t Br + Br + hi),
// clipped to [0, Sk) and rounded outwards to tiles of Bc. So the tiles visited are
//   sum over t of clamp(ceil((t Br + Br + hi) / Bc)) - clamp(floor((t Br + lo) / Bc)),
// two sums of floors of an arithmetic progression, which Euclid's algorithm evaluates.
#include "plan/tile_visits.h"

namespace tilewise {
namespace {

// The terms floor((step t + start) / divisor), t = 0, 1, ...
struct Progression {
  int64_t step;
  int64_t start;
  int64_t divisor;

  // The first t >= 0 whose term is at least `value`.
  int64_t first_reaching(int64_t value) const {
    const int64_t missing = value * divisor - start;
    return missing <= 0 ? 0 : ceil_div(missing, step);
  }
};

// sum of the first n terms, start >= 0. Whole multiples of the divisor are taken out of step and
// start; the rest counts the lattice points under a line, which seen from the line's far end and
// with the axes exchanged is the same problem with step and divisor exchanged, and smaller.
double sum_terms(Progression p, int64_t n) {
  double sum = 0;
  while (n > 0) {
    const double terms = static_cast<double>(n);
    sum += terms * (terms - 1) / 2 * static_cast<double>(p.step / p.divisor) +
           terms * static_cast<double>(p.start / p.divisor);
    p.step %= p.divisor;
    p.start %= p.divisor;
    const int64_t top = p.step * n + p.start;
    if (top < p.divisor) break;
    n = top / p.divisor;
    p = {p.divisor, top % p.divisor, p.step};
  }
  return sum;
}

// sum of the first n terms, each clamped to [0, limit].
double sum_clamped(Progression p, int64_t n, int64_t limit) {
  const int64_t rising = min_of(p.first_reaching(1), n);
  const int64_t flat = max_of(min_of(p.first_reaching(limit), n), rising);
  const Progression from_rising{p.step, p.start + p.step * rising, p.divisor};
  return sum_terms(from_rising, flat - rising) +
         static_cast<double>(n - flat) * static_cast<double>(limit);
}

}  // namespace

Visits count_visits(const BandMask& mask, TileSize tile) {
  if (mask.seq_q <= 0 || mask.seq_kv <= 0 || mask.lo > mask.hi) return {};
  const int64_t outer_tiles = ceil_div(mask.seq_q, tile.outer);
  const int64_t inner_tiles = ceil_div(mask.seq_kv, tile.inner);

  // The whole outer tiles, up to the first that lies past the last key.
  const Progression first_key{tile.outer, mask.lo, 1};
  const int64_t whole = min_of(outer_tiles - 1, first_key.first_reaching(mask.seq_kv));
  const Progression begins{tile.outer, mask.lo, tile.inner};
  const Progression ends{tile.outer, tile.outer + mask.hi + tile.inner - 1, tile.inner};
  const double tiles =
      sum_clamped(ends, whole, inner_tiles) - sum_clamped(begins, whole, inner_tiles);
  const double cut = static_cast<double>(inner_tiles * tile.inner - mask.seq_kv);
  const double cut_visits =
      static_cast<double>(max_of(whole - ends.first_reaching(inner_tiles), int64_t{0}));
  const double rows = tiles * static_cast<double>(tile.inner) - cut * cut_visits;

  // The last outer tile may be short.
  const Span last{(outer_tiles - 1) * tile.outer, mask.seq_q};
  const Span keys = mask.keys_of(last);
  const int64_t last_rows = keys.empty() ? 0
                                         : min_of(round_up(keys.end, tile.inner), mask.seq_kv) -
                                               keys.begin / tile.inner * tile.inner;
  return {rows + static_cast<double>(last_rows),
          rows * static_cast<double>(tile.outer) +
              static_cast<double>(last_rows) * static_cast<double>(last.size())};
}

BandMask transposed(const BandMask& mask) {
  return {mask.seq_kv, mask.seq_q, -mask.hi, -mask.lo};
}

}  // namespace tilewise
