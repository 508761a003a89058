// Every SIMD kernel of the CPU backend, compiled once per tier from one source: the template
// argument is the Highway target. cpu/registry.cpp makes rows of them.
#pragma once

#include "cpu/job.h"

namespace tilewise::cpu {

template <std::int64_t kTarget>
void forward_fa2(const ForwardJob& job);
template <std::int64_t kTarget>
void forward_split(const ForwardJob& job);
template <std::int64_t kTarget>
void forward_fa1(const ForwardJob& job);
template <std::int64_t kTarget>
void forward_standard(const ForwardJob& job);
// What every backward begins with: the rows' statistics.
template <std::int64_t kTarget>
void backward_prepare(const BackwardJob& job);
template <std::int64_t kTarget>
void backward_tiled(const BackwardJob& job);
template <std::int64_t kTarget>
void backward_standard(const BackwardJob& job);
template <std::int64_t kTarget>
void backward_bias(const BackwardJob& job);

// For tiers that have bf16 dot products; other dtypes go to the AVX-512 tier's kernels.
void forward_fa2_bf16(const ForwardJob& job);
void forward_fa2_amx(const ForwardJob& job);
void forward_fa2_amx_emulated(const ForwardJob& job);
void backward_tiled_bf16(const BackwardJob& job);
void backward_tiled_amx(const BackwardJob& job);
void backward_tiled_amx_emulated(const BackwardJob& job);

// Float64, the same on every tier.
void forward_reference(const ForwardJob& job);
void backward_reference(const BackwardJob& job);

// Workspace bytes of one thread.
std::int64_t forward_fa2_bytes(const Problem& problem, const PassPlan& pass);
std::int64_t forward_fa1_bytes(const Problem& problem, const PassPlan& pass);
std::int64_t forward_standard_bytes(const Problem& problem, const PassPlan& pass);

// Workspace bytes of all threads together.
std::int64_t forward_split_bytes(const Problem& problem, const PassPlan& pass);
std::int64_t backward_tiled_bytes(const Problem& problem, const PassPlan& pass);
std::int64_t backward_standard_bytes(const Problem& problem, const PassPlan& pass);

}  // namespace tilewise::cpu
