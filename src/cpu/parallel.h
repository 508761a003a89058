// The one place that starts threads.
#pragma once

#include <cstdint>
#include <functional>

namespace tilewise::cpu {

// What OpenMP would use now, OMP_NUM_THREADS and affinity included; no more than the control
// group's share of processor time, unless somebody asked for a number; 1 inside a caller's parallel
// region.
int default_threads();

// Calls body(item, thread) for every item, thread < threads. Items are handed out in ascending
// order (kernels that pass a turn from item to item rely on it) to whichever thread is free.
void parallel_for(int64_t items, int threads, const std::function<void(int64_t, int)>& body);

}  // namespace tilewise::cpu
