// fa2 in f32 products, on every tier.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward_fa2.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include "cpu/kernels/forward_fa2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {

template <>
void forward_fa2<HWY_TARGET>(const ForwardJob& job) {
  HWY_NAMESPACE::run_fa2<HWY_NAMESPACE::F32Operands>(job);
}

}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();
