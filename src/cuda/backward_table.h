// The CUDA backend's backward kernels: which exist, which of them a problem takes, and the
// workspace they share.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/sm90/backward_config.h"
#include "tilewise/plan.hpp"

namespace tilewise::cuda {

// Tiles for one range of head dims (docs/backward_sm90.md).
struct BackwardRow {
  int max_head_dim;  // of D and Dv
  bool plain;        // only for problems whose scores are not modified
  bool wide;         // sm90/backward_wide.h
  int tile_q, tile_kv, q_stages, do_stages;
  // Up to these lengths of keys the fixed order of additions is the faster one, asked for or not.
  int turns_full, turns_banded;
};

// First match wins.
const std::vector<BackwardRow>& backward_table();

// Why the backward can't take the problem; empty if it can.
std::string why_not_backward(const Problem& problem);

// The config of the row that `problem` takes, with everything that it leaves out switched off.
sm90::BackwardConfig backward_config(const Problem& problem, const Options& options);

// The kernels of a backward, in the order in which they run; kBias only when dBias is asked for.
enum class BackwardKernel { kPrepare, kReplay, kMain, kFinish, kBias };
inline constexpr int kBackwardKernels = 5;
const char* name_of(BackwardKernel kernel);  // "prepare"

// The config without what the kernel doesn't read, so that problems share kernels.
sm90::BackwardConfig kernel_config(sm90::BackwardConfig config, BackwardKernel kernel);

// The config as one line, and what is compiled for it.
std::string config_text(const sm90::BackwardConfig& config);
std::string kernel_source(const sm90::BackwardConfig& config, BackwardKernel kernel);

// Where each part of the workspace begins, in bytes.
struct BackwardWorkspace {
  std::int64_t tiles = 0;  // query tiles of all sequences, for each head
  std::int64_t dq_sum = 0, stats = 0, dsink_parts = 0, far_tiles = 0, turns = 0, items_taken = 0;
  std::int64_t bytes = 0;
};
BackwardWorkspace backward_workspace(const Problem& problem, const sm90::BackwardConfig& config);

}  // namespace tilewise::cuda
