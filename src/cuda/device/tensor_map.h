// A tensor map as the driver encodes it (CUtensorMap): opaque to us, passed by value to a kernel.
#pragma once

#include "core/base.h"

namespace tilewise {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

}  // namespace tilewise
