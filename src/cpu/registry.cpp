// The tiers and the kernel rows, and the one environment variable that caps the tier.
#include "cpu/registry.h"

#include <cstring>

#include "core/base.h"
#include "core/environment.h"
#include "cpu/kernels/table.h"
#include "cpu/simd/matrix.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace tilewise::cpu {
namespace {

template <std::int64_t kTarget>
Tier make_tier(const char* name) {
  return {name,
          kTarget,
          {forward_split<kTarget>, forward_fa2<kTarget>, forward_fa1<kTarget>,
           forward_standard<kTarget>, forward_reference, backward_tiled<kTarget>,
           backward_standard<kTarget>, backward_reference}};
}

using Bytes = std::int64_t (*)(const Problem&, const PassPlan&);

template <Bytes kBytes>
std::int64_t for_all_threads(const Problem& problem, const PassPlan& pass) {
  return saturated_product(pass.threads, kBytes(problem, pass));
}

// For kernels whose items are whole heads: no more threads than those find work.
template <Bytes kBytes>
std::int64_t for_busy_threads(const Problem& problem, const PassPlan& pass) {
  return saturated_product(min_of<std::int64_t>(pass.threads, problem.batch * problem.heads_q),
                           kBytes(problem, pass));
}

constexpr const char* kTiledBackward =
    "keys outside, queries inside: dK and dV stay, dQ takes turns";

bool always(const Problem&) {
  return true;
}
bool never(const Problem&) {
  return false;
}

std::int64_t nothing(const Problem&, const PassPlan&) {
  return 0;
}

}  // namespace

const std::vector<Tier>& all_tiers() {
  static const std::vector<Tier> tiers = {
#if HWY_ARCH_X86
    make_tier<HWY_AVX3>("avx512"),
    make_tier<HWY_AVX2>("avx2"),
#endif
    make_tier<HWY_BASELINE_SCALAR>("scalar"),
  };
  return tiers;
}

std::string unknown_isa_cap() {
  const char* cap = environment("TILEWISE_CPU_ISA");
  if (!cap) return "";
  for (const Tier& t : all_tiers())
    if (std::strcmp(cap, t.name) == 0) return "";
  return cap;
}

const std::vector<Tier>& usable_tiers() {
  static const std::vector<Tier> usable = [] {
    const char* cap = environment("TILEWISE_CPU_ISA");
    bool below_cap = true;
    for (const Tier& t : all_tiers())
      if (cap && std::strcmp(cap, t.name) == 0) below_cap = false;  // a name we know: start there
    std::vector<Tier> out;
    for (const Tier& t : all_tiers()) {
      if (cap && std::strcmp(cap, t.name) == 0) below_cap = true;
      const bool baseline = t.target == HWY_BASELINE_SCALAR;
      if (baseline || (below_cap && (hwy::SupportedTargets() & t.target))) out.push_back(t);
    }
    return out;
  }();
  return usable;
}

const std::vector<KernelRow>& kernel_table() {
  static const std::vector<KernelRow> rows = {
      {"split", "keys split over threads, all queries of a kv head together, then a merge",
       kTiledBackward, has_few_queries, "is for few queries (Sq * Hq / Hkv up to 16) of many keys",
       split_tiles, &TierKernels::forward_split, &TierKernels::backward_tiled, forward_split_bytes,
       backward_tiled_bytes},
      {"fa2", "queries outside, keys inside; O written once", kTiledBackward, always,
       "pays for packing keys, which few queries don't earn back", forward_tiles,
       &TierKernels::forward_fa2, &TierKernels::backward_tiled, for_all_threads<forward_fa2_bytes>,
       backward_tiled_bytes},
      {"fa1", "keys outside, queries inside, as in the first paper", kTiledBackward, never,
       "its running O passes through memory once for every key tile", forward_tiles,
       &TierKernels::forward_fa1, &TierKernels::backward_tiled, for_busy_threads<forward_fa1_bytes>,
       backward_tiled_bytes},
      {"standard", "the whole score matrix in memory, the papers' baseline",
       "P and dS in memory, then the products", never, "needs memory that grows with Sq * Sk",
       forward_tiles, &TierKernels::forward_standard, &TierKernels::backward_standard,
       for_busy_threads<forward_standard_bytes>, backward_standard_bytes},
      {"reference", "float64, the oracle of the tests", "float64, the oracle of the tests", never,
       "is for checking, not for speed", forward_tiles, &TierKernels::forward_reference,
       &TierKernels::backward_reference, nothing, nothing},
  };
  return rows;
}

}  // namespace tilewise::cpu
