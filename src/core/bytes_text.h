// A quantity of bytes for people.
#pragma once

#include <fmt/format.h>

#include <string>

namespace tilewise {

// "512 B", "3.25 MiB", "16 GiB": four digits.
inline std::string bytes_text(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 5) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace tilewise
