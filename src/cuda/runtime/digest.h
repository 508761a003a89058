// Digests that name and guard kernels on disk: against accidents, not against malice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/format.h"

namespace tilewise::cuda {

// FNV-1a twice, from different starts: 128 bits. Texts added in turn are kept apart by their sizes.
class Digest {
 public:
  void add(std::string_view text) {
    for (const unsigned char c : text) {
      a_ = (a_ ^ c) * kPrime;
      b_ = (b_ ^ (c + 0x9Eu)) * kPrime;
    }
    a_ = (a_ ^ text.size()) * kPrime;
  }
  std::string hex() const { return format_text("{:016x}{:016x}", a_, b_); }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001B3u;
  std::uint64_t a_ = 0xCBF29CE484222325u, b_ = 0x6C62272E07BB0142u;
};

inline std::string digest_of(std::string_view text) {
  Digest d;
  d.add(text);
  return d.hex();
}

}  // namespace tilewise::cuda
