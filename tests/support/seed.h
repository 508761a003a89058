// The seed of this run's random inputs: fresh each time and printed, or TILEWISE_TEST_SEED.
#pragma once

#include <cstdint>

namespace tilewise_test {

std::uint64_t seed();

}  // namespace tilewise_test
