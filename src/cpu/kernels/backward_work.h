// A backward pass' memory and its work items.
#pragma once

#include <cstring>
#include <vector>

#include "cpu/job.h"
#include "cpu/kernels/backward_scratch.h"
#include "cpu/kernels/work.h"

namespace tilewise::cpu {

// The workspace as the plan laid it out: the shared part, then one part a thread.
struct BackwardMemory {
  explicit BackwardMemory(const BackwardJob& j) : job(j) {
    Arena arena(job.workspace);
    shared = carve_shared(arena, job.problem, job.pass);
    threads = static_cast<std::byte*>(job.workspace) + arena.bytes();
    thread_bytes = backward_thread_bytes(job.problem, job.pass);
  }
  BackwardTiles tiles(int thread) const {
    Arena arena(threads + thread * thread_bytes);
    return carve_backward(arena, job.problem, job.pass);
  }
  PrepareTiles prepare_tiles(int thread) const {
    Arena arena(threads + thread * thread_bytes);
    return carve_prepare(arena, job.problem, job.pass);
  }

  // The baseline's matrices lie behind all threads' tiles.
  StandardMatrices standard_matrices(int thread) const {
    Arena arena(threads + job.pass.threads * thread_bytes +
                thread * standard_matrix_bytes(job.problem));
    return carve_standard(arena, job.problem);
  }

  const BackwardJob& job;
  SharedBackward shared;
  std::byte* threads;
  int64_t thread_bytes;
};

// The work of both passes: query tiles of all query heads, key tiles of all kv heads.
struct BackwardWork {
  explicit BackwardWork(const BackwardJob& job)
      : seqs(sequences(job.problem, job.in)),
        queries(seqs, &Sequence::q_slot, job.pass.tile_q, job.problem.heads_q),
        keys(seqs, &Sequence::kv_slot, job.pass.tile_kv, job.problem.heads_kv) {}
  std::vector<Sequence> seqs;
  WorkList queries, keys;
};

inline void zero_output_rows(const Rows& rows, Span span) {
  for (int64_t i = span.begin; i < span.end; ++i)
    std::memset(rows.row(i), 0, rows.cols * size_of(rows.dtype));
}

}  // namespace tilewise::cpu
