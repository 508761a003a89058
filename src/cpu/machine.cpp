#include "cpu/machine.h"

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

const Machine& machine() {
  static const Machine m = {
      model_name(), omp_get_num_procs(), cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10),
      cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20), cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0)};
  return m;
}

}  // namespace tilewise::cpu
