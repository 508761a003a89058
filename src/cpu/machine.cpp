#include "cpu/machine.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#endif
#include <omp.h>
#include <unistd.h>

#include <fstream>

namespace tilewise::cpu {
namespace {

std::int64_t cache_bytes(int name, std::int64_t unknown) {
  const long bytes = sysconf(name);
  return bytes > 0 ? bytes : unknown;
}

std::string model_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

bool has_amx_bf16() {
#ifdef __x86_64__
  static const bool granted = [] {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // of leaf 7's EDX
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTile) == 0)
      return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

const Machine& machine() {
  static const Machine m = {
      model_name(), omp_get_num_procs(), cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10),
      cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20), cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0)};
  return m;
}

}  // namespace tilewise::cpu
