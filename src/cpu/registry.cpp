// The tiers and the kernel rows, and the one environment variable that caps the tier.
#include "cpu/registry.h"

#include <cstring>

#include "core/base.h"
#include "core/environment.h"
#include "cpu/kernels/table.h"
#include "cpu/machine.h"
#include "cpu/simd/matrix.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace tilewise::cpu {
namespace {

bool always() {
  return true;
}

int in_f32(DType) {
  return 0;
}

template <std::int64_t kTarget>
Tier make_tier(const char* name) {
  return {name,
          kTarget,
          always,
          in_f32,
          {forward_split<kTarget>, forward_fa2<kTarget>, forward_fa1<kTarget>,
           forward_standard<kTarget>, forward_reference, backward_tiled<kTarget>,
           backward_standard<kTarget>, backward_reference}};
}

#if HWY_ARCH_X86
bool has_amx() {
  return has_amx_bf16() && __builtin_cpu_supports("avx512bf16");
}

// Where TILEWISE_CPU_ISA asks for a tier that no plan would take by itself on this processor.
bool asks_for(const char* tier) {
  const char* cap = environment("TILEWISE_CPU_ISA");
  return cap && std::strcmp(cap, tier) == 0 && __builtin_cpu_supports("avx512bf16");
}

// For the tests of the AMX code on machines without it.
bool wants_emulation() {
  return asks_for("amx_emulated");
}

// Where a bf16 dot product, of two numbers a lane, is issued as often as an FMA of one: Zen 4 and
// later. Intel's do half an FMA's work in the same time, so there f32 is as good and more accurate.
bool wants_bf16_dot() {
  return (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd")) ||
         asks_for("avx512_bf16");
}

int bf16_whole(DType dtype) {
  return dtype == DType::kBF16 ? 1 : 0;
}

// f32 would take three parts and six products: no faster than FMAs so far.
int halves_in_parts(DType dtype) {
  return dtype == DType::kBF16 ? 1 : dtype == DType::kF16 ? 2 : 0;
}

// A tier with bf16 products; what they don't serve runs on the AVX-512 tier's kernels.
Tier bf16_tier(const char* name, bool (*supported)(), int (*parts)(DType), ForwardFn forward,
               BackwardFn backward) {
  Tier tier = make_tier<HWY_AVX3>(name);
  tier.supported = supported;
  tier.parts = parts;
  tier.kernels.forward_fa2 = forward;
  tier.kernels.backward_tiled = backward;
  return tier;
}
#endif

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

bool every_problem(const Problem&) {
  return true;
}
bool no_problem(const Problem&) {
  return false;
}

std::int64_t nothing(const Problem&, const PassPlan&) {
  return 0;
}

}  // namespace

const std::vector<Tier>& all_tiers() {
  static const std::vector<Tier> tiers = {
#if HWY_ARCH_X86
    bf16_tier("amx", has_amx, halves_in_parts, forward_fa2_amx, backward_tiled_amx),
    bf16_tier("avx512_bf16", wants_bf16_dot, bf16_whole, forward_fa2_bf16, backward_tiled_bf16),
    make_tier<HWY_AVX3>("avx512"),
    make_tier<HWY_AVX2>("avx2"),
    bf16_tier("amx_emulated", wants_emulation, halves_in_parts, forward_fa2_amx_emulated,
              backward_tiled_amx_emulated),
#endif
    make_tier<HWY_BASELINE_SCALAR>("scalar"),
  };
  return tiers;
}

int operand_parts(const Problem& problem, const PassPlan& pass) {
  for (const Tier& t : all_tiers())
    if (pass.isa == t.name) return t.parts(problem.dtype);
  return 0;
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
      const bool runs = (hwy::SupportedTargets() & t.target) && t.supported();
      if (baseline || (below_cap && runs)) out.push_back(t);
    }
    return out;
  }();
  return usable;
}

const std::vector<KernelRow>& kernel_table() {
  static const std::vector<KernelRow> rows = {
      {"split", "keys split over threads, all queries of a kv head together, then a merge",
       kTiledBackward, has_few_queries, "is for few queries (Sq * Hq / Hkv up to 16) of many keys",
       SumOrder::kOwn, split_tiles, &TierKernels::forward_split, &TierKernels::backward_tiled,
       forward_split_bytes, backward_tiled_bytes},
      {"fa2", "queries outside, keys inside; O written once", kTiledBackward, every_problem,
       "pays for packing keys, which few queries don't earn back", SumOrder::kAsBackward,
       forward_tiles, &TierKernels::forward_fa2, &TierKernels::backward_tiled,
       for_all_threads<forward_fa2_bytes>, backward_tiled_bytes},
      {"fa1", "keys outside, queries inside, as in the first paper", kTiledBackward, no_problem,
       "its running O passes through memory once for every key tile", SumOrder::kAsBackward,
       forward_tiles, &TierKernels::forward_fa1, &TierKernels::backward_tiled,
       for_busy_threads<forward_fa1_bytes>, backward_tiled_bytes},
      {"standard", "the whole score matrix in memory, the papers' baseline",
       "P and dS in memory, then the products", no_problem, "needs memory that grows with Sq * Sk",
       SumOrder::kAsBackward, forward_tiles, &TierKernels::forward_standard,
       &TierKernels::backward_standard, for_busy_threads<forward_standard_bytes>,
       backward_standard_bytes},
      {"reference", "float64, the oracle of the tests", "float64, the oracle of the tests",
       no_problem, "is for checking, not for speed", SumOrder::kAsBackward, forward_tiles,
       &TierKernels::forward_reference, &TierKernels::backward_reference, nothing, nothing},
  };
  return rows;
}

}  // namespace tilewise::cpu
