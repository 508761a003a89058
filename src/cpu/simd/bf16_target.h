// Makes a source that Highway compiles for AVX-512 use the bf16 and AMX instructions as well, which
// this version of Highway has no target for. The code gets a namespace of its own, so that no
// inline function compiled here can stand in for the one that every AVX-512 processor can run.
// Included after hwy/foreach_target.h and before the headers of the kernels; no include guard,
// since that is once for every target.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#undef TILEWISE_BF16_DOT
#if HWY_TARGET == HWY_AVX3
#define TILEWISE_BF16_DOT 1
namespace hwy::N_AVX3_BF16 {
using namespace hwy::N_AVX3;  // NOLINT(google-build-using-namespace): all of Highway, by this name
}
#undef HWY_NAMESPACE
#define HWY_NAMESPACE N_AVX3_BF16
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16,amx-tile,amx-bf16"
#endif
