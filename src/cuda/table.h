// The CUDA backend's table: the Hopper forward kernels that exist, and which of them a problem
// takes. The plan, the tests and the compile check read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device/sm90/forward_config.h"
#include "tilewise/plan.hpp"

namespace tilewise::cuda {

// What a problem asks of a consumer beside the plain softmax: nothing; ALiBi's slopes; or
// registers (softcap, bias, dropout, a scale that is not positive).
enum class Extras { kNone, kAlibi, kRegisters };

// Tiles for one range of head dims and one kind of mask, as measured (docs/forward_sm90.md).
struct ForwardRow {
  int max_head_dim;  // of D and Dv
  sm90::Band band;
  Extras extras;   // the most that it has registers for
  int min_seq_kv;  // shorter problems go to a later row
  int tile_q, tile_kv, stages;
  bool q_in_registers;
};

// First match wins; rows of three consumers only where queries fill their tiles.
const std::vector<ForwardRow>& forward_table();

inline constexpr const char* kForwardKernel = "fa3";
inline constexpr const char* kForwardSummary =
    "FlashAttention-3: warp-specialized, TMA and WGMMA, consumers taking turns";

// Whether tiles of 64 rows are more than 2^30: work items are counted in 32 bits.
bool too_many_tiles(std::int64_t batch, std::int64_t heads, std::int64_t rows);

// Why the forward kernel can't take the problem at all; empty if it can.
std::string why_not_forward(const Problem& problem);

// The config of the row that `problem` takes, with everything that it leaves out switched off.
sm90::ForwardConfig forward_config(const Problem& problem, const Options& options);
sm90::ForwardConfig forward_config(const Problem& problem, const ForwardRow& row);

// The config as one line: the key of the kernel, and the initializer in its source.
std::string config_text(const sm90::ForwardConfig& config);
std::string kernel_source(const sm90::ForwardConfig& config);

}  // namespace tilewise::cuda
