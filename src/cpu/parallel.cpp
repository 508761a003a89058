#include "cpu/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/cgroup.h"

namespace tilewise::cpu {

int default_threads() {
  if (omp_in_parallel()) return 1;
  static const double granted = granted_processors();
  const int threads = std::max(1, omp_get_max_threads());
  const bool asked_for = threads != omp_get_num_procs();
  if (asked_for || granted <= 0 || granted >= threads) return threads;
  return std::max(1, static_cast<int>(std::ceil(granted)));
}

void parallel_for(int64_t items, int threads, const std::function<void(int64_t, int)>& body) {
  threads = static_cast<int>(std::min<int64_t>(threads, items));
  if (threads <= 1) {
    for (int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  for (int64_t i = next.fetch_add(1); i < items; i = next.fetch_add(1))
    body(i, omp_get_thread_num());
}

}  // namespace tilewise::cpu
