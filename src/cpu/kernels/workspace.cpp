// Workspace sizes: each kernel's carve functions run over an empty Arena.
#include "cpu/kernels/backward_scratch.h"
#include "cpu/kernels/split.h"
#include "cpu/kernels/table.h"
#include "cpu/registry.h"

namespace tilewise::cpu {

// Room for either kind of operand: numbers that cannot be split run in f32.
std::int64_t forward_fa2_bytes(const Problem& problem, const PassPlan& pass) {
  const std::int64_t heads = heads_together(problem, pass.tile_q, pass.threads);
  Arena f32, parts;
  carve_forward(f32, problem, pass, 0, heads);
  carve_forward(parts, problem, pass, operand_parts(problem, pass), heads);
  return max_of(f32.bytes(), parts.bytes());
}

std::int64_t forward_split_bytes(const Problem& problem, const PassPlan& pass) {
  Arena arena;
  carve_partials(arena, problem, pass);
  return min_of(arena.bytes() + saturated_product(pass.threads, split_thread_bytes(problem, pass)),
                kTooManyBytes);
}

std::int64_t forward_fa1_bytes(const Problem& problem, const PassPlan& pass) {
  Arena arena;
  carve_forward(arena, problem, pass, 0);
  carve_running(arena, problem);
  return arena.bytes();
}

std::int64_t forward_standard_bytes(const Problem& problem, const PassPlan& pass) {
  Arena arena;
  carve_forward(arena, problem, pass, 0);
  carve_scores(arena, problem);
  return arena.bytes();
}

std::int64_t backward_tiled_bytes(const Problem& problem, const PassPlan& pass) {
  return min_of(backward_shared_bytes(problem, pass) +
                    saturated_product(pass.threads, backward_thread_bytes(problem, pass)),
                kTooManyBytes);
}

std::int64_t backward_standard_bytes(const Problem& problem, const PassPlan& pass) {
  const std::int64_t heads = min_of<std::int64_t>(pass.threads, problem.batch * problem.heads_kv);
  return min_of(backward_tiled_bytes(problem, pass) +
                    saturated_product(heads, standard_matrix_bytes(problem)),
                kTooManyBytes);
}

}  // namespace tilewise::cpu
