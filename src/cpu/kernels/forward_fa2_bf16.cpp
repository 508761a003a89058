// fa2 in bf16 dot products, for bf16 inputs, and on AMX tiles, for f16 as well: as sums of bf16
// parts.
// clang-format off
#include <atomic>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_fa2_bf16.cpp"
#include "hwy/foreach_target.h"
#include "cpu/simd/bf16_target.h"
// clang-format on
#include "cpu/kernels/forward_fa2-inl.h"
#include "cpu/simd/amx-inl.h"

#if TILEWISE_BF16_DOT
HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {

namespace {

// inf and NaN have no parts, and no place in a benchmark either.
bool splittable(const ForwardJob& job) {
  const Problem& problem = job.problem;
  const std::vector<Sequence> seqs = sequences(problem, job.in);
  std::atomic<bool> finite = true;
  parallel_for(seqs.size() * problem.heads_q, job.pass.threads, [&](int64_t i, int) {
    const int64_t group = problem.heads_q / problem.heads_kv, h = i % problem.heads_q;
    const Head head = make_head(problem, job.in, seqs[i / problem.heads_q], h);
    bool all = HWY_NAMESPACE::rows_finite(head.q, {0, head.seq.q_used});
    if (h % group == 0)
      all = all && HWY_NAMESPACE::rows_finite(head.k, {0, head.seq.kv_used}) &&
            HWY_NAMESPACE::rows_finite(head.v, {0, head.seq.kv_used});
    if (!all) finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

template <class Tiles>
void run_tiles(const ForwardJob& job) {
  using namespace HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): of this file's kernels
  if (job.problem.dtype == DType::kBF16) return run_fa2<AmxOperands<Tiles, 1>>(job);
  if (job.problem.dtype == DType::kF16 && splittable(job))
    return run_fa2<AmxOperands<Tiles, 2>>(job);
  forward_fa2<HWY_AVX3>(job);
}

}  // namespace

void forward_fa2_bf16(const ForwardJob& job) {
  if (job.problem.dtype == DType::kBF16)
    return HWY_NAMESPACE::run_fa2<HWY_NAMESPACE::PairOperands>(job);
  forward_fa2<HWY_AVX3>(job);
}
void forward_fa2_amx(const ForwardJob& job) {
  run_tiles<HWY_NAMESPACE::HardwareTiles>(job);
}
void forward_fa2_amx_emulated(const ForwardJob& job) {
  run_tiles<HWY_NAMESPACE::EmulatedTiles>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
#endif
