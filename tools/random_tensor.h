// Tensors of N(0, 1) for the subcommands that need numbers but no files.
#pragma once

#include <cstdint>
#include <span>

#include "io/host_tensor.h"

namespace tilewise::tools {

Expected<io::HostTensor> random_tensor(DType dtype, std::span<const std::int64_t> shape,
                                       std::uint64_t seed);

}  // namespace tilewise::tools
