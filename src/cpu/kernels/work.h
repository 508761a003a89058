// The list of work items of a pass: (sequence, head, tile), tiles of one sequence in ascending or
// descending order. Sequences of a ragged batch may have any number of tiles, none included.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/rows.h"

namespace tilewise::cpu {

struct WorkItem {
  int64_t sequence, tile, head;
};

class WorkList {
 public:
  // `slot` is the member of Sequence that is cut into tiles: q_slot or kv_slot.
  WorkList(const std::vector<Sequence>& seqs, int64_t Sequence::*slot, int64_t tile_rows,
           int64_t heads)
      : heads_(heads), first_{0} {
    for (const Sequence& s : seqs) first_.push_back(first_.back() + ceil_div(s.*slot, tile_rows));
  }

  int64_t size() const { return first_.back() * heads_; }

  // The item's place in the list: what is kept for each item is indexed by it.
  int64_t place(const WorkItem& item) const {
    return (first_[item.sequence] + item.tile) * heads_ + item.head;
  }

  // Heads are innermost: items that follow each other belong to different heads where possible.
  WorkItem operator[](int64_t i) const {
    const int64_t tile = i / heads_;
    const auto after = std::upper_bound(first_.begin(), first_.end(), tile);
    const int64_t s = after - first_.begin() - 1;
    return {s, tile - first_[s], i % heads_};
  }

  // The same list with each sequence's tiles from the last to the first: under a causal mask the
  // longest rows go first and the short ones fill the gaps at the end.
  WorkItem longest_first(int64_t i) const {
    WorkItem item = (*this)[i];
    item.tile = first_[item.sequence + 1] - first_[item.sequence] - 1 - item.tile;
    return item;
  }

 private:
  int64_t heads_;
  std::vector<int64_t> first_;  // tiles before each sequence
};

}  // namespace tilewise::cpu
