// See meter.h. The multiply-adds are compiled once for each tier and picked at run time.
#include "meter.h"

#include <malloc.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/meter.cpp"
#include <hwy/foreach_target.h>  // NOLINT: includes this file again
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tilewise::tools::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Ten chains cover 4 to 5 cycles of latency on two units and fit in 16 registers. Returns the
// FLOPs.
double fma_chains(std::int64_t rounds) {
  constexpr int kChains = 10;
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  auto x0 = hn::Iota(d, 0), x1 = hn::Iota(d, 1), x2 = hn::Iota(d, 2), x3 = hn::Iota(d, 3),
       x4 = hn::Iota(d, 4), x5 = hn::Iota(d, 5), x6 = hn::Iota(d, 6), x7 = hn::Iota(d, 7),
       x8 = hn::Iota(d, 8), x9 = hn::Iota(d, 9);
  for (std::int64_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(x0, a, b), x1 = hn::MulAdd(x1, a, b), x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b), x4 = hn::MulAdd(x4, a, b), x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b), x7 = hn::MulAdd(x7, a, b), x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)),
                           hn::Add(hn::Add(hn::Add(x4, x5), hn::Add(x6, x7)), hn::Add(x8, x9)));
  volatile float keep = hn::GetLane(sum);
  (void)keep;
  return 2.0 * kChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace tilewise::tools::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::tools {
namespace {

HWY_EXPORT(fma_chains);

double status_bytes(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(field, 0) == 0) return std::stod(line.substr(line.find(':') + 1)) * 1024;
  return 0;
}

}  // namespace

std::optional<double> peak_extra_bytes(const std::function<void()>& work) {
  malloc_trim(0);  // or freed memory that is still resident would serve `work` and hide its use
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  const double before = status_bytes("VmRSS");
  const bool works = reset.good() && before > 0 && status_bytes("VmHWM") < before * 1.01 + 1e6;
  work();
  if (!works) return std::nullopt;
  return std::max(0.0, status_bytes("VmHWM") - before);
}

double fma_ceiling_tflops(int threads) {
  using Clock = std::chrono::steady_clock;
  if (threads == 0) threads = omp_get_max_threads();
  const auto chains = HWY_DYNAMIC_DISPATCH(fma_chains);
  double best = 0;
  for (int repeat = 0; repeat < 10; ++repeat) {
    double flops = 0;
    const Clock::time_point start = Clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : flops)
    flops += chains(2'000'000);
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best * 1e-12;
}

}  // namespace tilewise::tools
#endif
