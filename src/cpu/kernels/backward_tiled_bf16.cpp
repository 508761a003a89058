// The tiled backward in bf16 dot products and on AMX tiles, for bf16 inputs.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_tiled_bf16.cpp"
#include "hwy/foreach_target.h"
#include "cpu/simd/bf16_target.h"
// clang-format on
#include "cpu/kernels/backward_tiled-inl.h"
#include "cpu/simd/amx-inl.h"
#include "cpu/simd/softmax_bf16-inl.h"

#if TILEWISE_BF16_DOT
HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace {

// dO comes in the dtype of O. dbias, where it is asked for, is a pass of its own over f32 scores.
template <class Operands>
void run(const BackwardJob& job) {
  const DType in = job.problem.dtype, out = job.problem.out_dtype.value_or(in);
  if (in != DType::kBF16 || out != DType::kBF16) return backward_tiled<HWY_AVX3>(job);
  HWY_NAMESPACE::run_backward_tiled<Operands>(job);
  if (job.grads.dbias.given()) backward_bias<HWY_AVX3>(job);
}

}  // namespace

void backward_tiled_bf16(const BackwardJob& job) {
  run<HWY_NAMESPACE::PairOperands>(job);
}
void backward_tiled_amx(const BackwardJob& job) {
  run<HWY_NAMESPACE::AmxOperands<HWY_NAMESPACE::HardwareTiles, 1>>(job);
}
void backward_tiled_amx_emulated(const BackwardJob& job) {
  run<HWY_NAMESPACE::AmxOperands<HWY_NAMESPACE::EmulatedTiles, 1>>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
#endif
