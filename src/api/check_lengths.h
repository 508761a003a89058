// Validation of what cu_seqlens and seqused hold. They lie on the device, so only a CPU can look.
#pragma once

#include "tilewise/attention.hpp"

namespace tilewise {

Status check_lengths(const Problem& problem, const Inputs& in);

}  // namespace tilewise
