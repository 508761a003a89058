// `tilewise plan --sweep N`: the IO model drawn as a small SVG chart.
#pragma once

#include <cstdint>
#include <string>

#include "tilewise/plan.hpp"

namespace tilewise {

// Draws predicted slow-memory traffic (bytes, log) against N = Sq = Sk (log, up to max_n) for
// standard, fa1, fa2 and the least possible, forward and backward side by side. Everything else is
// as `problem` says; M is options.fast_memory_bytes, or the device's when that is 0. With packed
// sequences each is taken to be N long. Nothing is left at `path` when this fails.
Status write_sweep_chart(const Problem& problem, const Options& options, std::int64_t max_n,
                         const std::string& path);

}  // namespace tilewise
