// fa2 in bf16 dot products and on AMX tiles, for bf16 inputs on processors that have them.
// clang-format off
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

template <class Operands>
void run(const ForwardJob& job) {
  if (job.problem.dtype == DType::kBF16)
    HWY_NAMESPACE::run_fa2<Operands>(job);
  else
    forward_fa2<HWY_AVX3>(job);
}

}  // namespace

void forward_fa2_bf16(const ForwardJob& job) {
  run<HWY_NAMESPACE::PairOperands>(job);
}
void forward_fa2_amx(const ForwardJob& job) {
  run<HWY_NAMESPACE::AmxOperands<HWY_NAMESPACE::HardwareTiles>>(job);
}
void forward_fa2_amx_emulated(const ForwardJob& job) {
  run<HWY_NAMESPACE::AmxOperands<HWY_NAMESPACE::EmulatedTiles>>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
#endif
