// The CPU's tables: the SIMD tiers this machine can run and the kernels that exist. The plan, the
// tests, the benchmarks and the README's support table read them; a new tier or kernel is a new
// row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/job.h"
#include "cpu/tiles.h"
#include "tilewise/plan.hpp"

namespace tilewise::cpu {

struct TierKernels {
  ForwardFn forward_split, forward_fa2, forward_fa1, forward_standard, forward_reference;
  BackwardFn backward_tiled, backward_standard, backward_reference;
};

struct Tier {
  const char* name;     // as Options::isa and TILEWISE_CPU_ISA spell it
  std::int64_t target;  // Highway's bit
  bool (*supported)();  // what the tier needs beyond that
  // In how many bf16 parts the fa2 kernel multiplies a dtype (simd/parts-inl.h); 0: as f32.
  int (*parts)(DType);
  TierKernels kernels;
};

// Compiled in, supported by this processor and operating system, and not above TILEWISE_CPU_ISA;
// the one that "auto" takes first, never empty.
const std::vector<Tier>& usable_tiers();

// What TILEWISE_CPU_ISA holds where that names no tier; it caps nothing then.
std::string unknown_isa_cap();

// Every tier compiled in, in the same order.
const std::vector<Tier>& all_tiers();

// As Tier::parts, for a pass of a plan.
int operand_parts(const Problem& problem, const PassPlan& pass);

// In which order a forward adds up q . k: as the backward does, so that what both round away is the
// same, or in one of its own, after which the backward works the rows out again.
enum class SumOrder { kAsBackward, kOwn };

struct KernelRow {
  const char* name;
  const char* summary;  // of the forward
  const char* backward_summary;
  // Does "auto" take the row for this problem, if no row above it does? `not_automatic` says why
  // not.
  bool (*automatic)(const Problem&);
  const char* not_automatic;
  SumOrder forward_order;
  Tiles (*forward_tiles)(const Problem&, const Options&, int threads);
  ForwardFn TierKernels::*forward;
  BackwardFn TierKernels::*backward;
  // Workspace bytes of all threads.
  std::int64_t (*forward_bytes)(const Problem&, const PassPlan&);
  std::int64_t (*backward_bytes)(const Problem&, const PassPlan&);
};

// Best first.
const std::vector<KernelRow>& kernel_table();

}  // namespace tilewise::cpu
