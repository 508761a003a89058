// The 16-bit types of Q, K, V and O. float32 accumulates.
#pragma once

namespace tilewise {

enum class Element { kBf16, kF16 };

}  // namespace tilewise
