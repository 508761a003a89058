// The tiled backward in f32 products, on every tier.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_tiled.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/backward_tiled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {

template <>
void backward_tiled<HWY_TARGET>(const BackwardJob& job) {
  HWY_NAMESPACE::run_backward_tiled<HWY_NAMESPACE::F32Operands>(job);
  if (job.grads.dbias.given()) backward_bias<HWY_TARGET>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
