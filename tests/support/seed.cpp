// See seed.h.
#include "support/seed.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace tilewise_test {

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("TILEWISE_TEST_SEED");
    const std::uint64_t v = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("TILEWISE_TEST_SEED=%llu\n", static_cast<unsigned long long>(v));
    return v;
  }();
  return value;
}

}  // namespace tilewise_test
