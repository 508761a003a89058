// What a benchmark measures besides time: peak memory and the processor's ceiling.
#pragma once

#include <functional>
#include <optional>

namespace tilewise::tools {

// Bytes by which the process' resident memory rises at most while `work` runs; nothing where Linux
// does not let us reset its high-water mark.
std::optional<double> peak_extra_bytes(const std::function<void()>& work);

// f32 TFLOP/s of independent fused multiply-adds in registers on `threads` threads (0: all), on the
// widest vectors of this processor: the ceiling of every matrix product.
double fma_ceiling_tflops(int threads);

}  // namespace tilewise::tools
