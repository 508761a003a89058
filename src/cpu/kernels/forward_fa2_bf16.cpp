// fa2 in bf16 dot products, for bf16 inputs on processors that have them.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_fa2_bf16.cpp"
#include "hwy/foreach_target.h"
#include "cpu/simd/bf16_target.h"
// clang-format on
#include "cpu/kernels/forward_fa2-inl.h"

#if TILEWISE_BF16_DOT
HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {

void forward_fa2_bf16(const ForwardJob& job) {
  if (job.problem.dtype == DType::kBF16)
    HWY_NAMESPACE::run_fa2<HWY_NAMESPACE::PairOperands>(job);
  else
    forward_fa2<HWY_AVX3>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
#endif
