// Checks of numbers on the command line. CLI11's own print their ranges in 300 digits, and let what
// does not fit into an integer become the largest one.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

namespace tilewise::tools {

// A whole number from `least` to `most`.
CLI::Validator whole_number(std::uint64_t least = 0,
                            std::uint64_t most = std::numeric_limits<std::int64_t>::max());

// A number such as 0.125, -3 or 1e-2: neither empty nor out of float's range.
CLI::Validator real_number();

}  // namespace tilewise::tools
