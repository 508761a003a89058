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

// AMX with bf16 products: in the processor, and granted to this process by the operating system,
// which keeps no room for the tiles of a thread until asked (Linux 5.16 and later).
bool has_amx_bf16();

}  // namespace tilewise::cpu
