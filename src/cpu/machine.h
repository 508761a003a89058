// What this processor is: for the plan's tiles and IO model, and for `tilewise info`.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::cpu {

struct Machine {
  std::string model;  // as the operating system names it
  int cores = 1;      // usable by this process
  std::int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20, l3_bytes = 0;  // data caches; 0: unknown
};

const Machine& machine();

}  // namespace tilewise::cpu
