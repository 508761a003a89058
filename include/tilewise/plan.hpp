// Plan: what will run and what it will cost, decided before any pointer is seen. make_plan is pure:
// the same problem, machine and options give the same plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/export.h"
#include "tilewise/problem.hpp"
#include "tilewise/status.hpp"

namespace tilewise {

struct Options {
  // "auto", or a row of the backend's table: "fa2", "fa1", "standard", "reference".
  std::string kernel = "auto";
  // CPU tier: "auto", "scalar", "avx2", "avx512", "avx512_bf16", "amx". TILEWISE_CPU_ISA caps it.
  // "avx512" also keeps f16 and f32 from being multiplied as sums of bf16 parts, as "amx" does.
  std::string isa = "auto";
  int threads = 0;             // CPU threads; 0 asks OpenMP. Results never depend on it
  bool deterministic = false;  // backward bitwise the same on every run (on the CPU it always is)
  std::int64_t tile_q = 0;     // rows of a query tile; 0 lets the plan choose
  std::int64_t tile_kv = 0;    // rows of a key tile; 0 lets the plan choose
  std::int64_t fast_memory_bytes = 0;  // M of the IO model; 0 takes the device's (L2 on a CPU)
};

// Slow-memory traffic in bytes that each loop order needs with M bytes of fast memory
// (FlashAttention, Dao et al. 2022, section 3.2; docs/io_model.md derives the constants).
struct IoModel {
  double fast_memory_bytes = 0;  // M
  double least_bytes = 0;        // every input read once, every output written once
  double standard_bytes = 0;     // the score matrix written and read back
  double fa1_bytes = 0;          // keys outside, queries inside
  double fa2_bytes = 0;          // queries outside, keys inside
};

// A row of the table that was not taken, and why.
struct Refusal {
  std::string kernel;
  std::string reason;
};

// One pass (forward or backward) of a plan.
struct PassPlan {
  std::string kernel;  // empty: no row can run this pass; `passed_over` says why
  std::string isa;     // CPU tier
  std::int64_t tile_q = 0;
  std::int64_t tile_kv = 0;
  int packed_heads = 1;  // query heads of one kv head that share a tile's rows
  int threads = 1;
  std::size_t workspace_bytes = 0;  // to be handed in by the caller, 64-byte aligned
  double flops = 0;                 // of the visible tiles' matrix products, 2 per multiply-add
  IoModel io;
  std::vector<Refusal> passed_over;
};

struct Plan {
  Problem problem;
  Device device;
  Options options;
  PassPlan forward;
  PassPlan backward;

  // In words: which kernel, which tiles, workspace, FLOPs, predicted traffic, and for every
  // candidate that was passed over, why.
  TILEWISE_EXPORT std::string describe() const;
};

// Errors: kInvalidArgument for a problem that makes no sense, kUnsupported when no row can run its
// forward (the message lists each row's reason), kUnavailable for a device that is not there.
TILEWISE_EXPORT Expected<Plan> make_plan(const Problem& problem, Device device = {},
                                         const Options& options = {});

// The names that Options::kernel and Options::isa accept for `device` on this machine, best first.
TILEWISE_EXPORT std::vector<std::string> kernel_names(Device device = {});
TILEWISE_EXPORT std::vector<std::string> isa_names();

}  // namespace tilewise
