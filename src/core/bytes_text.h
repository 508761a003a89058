// A quantity of bytes for people.
#pragma once

#include <string>

#include "core/format.h"

namespace tilewise {

// "512 B", "3.25 MiB", "16 GiB": four digits.
inline std::string bytes_text(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 5) bytes /= 1024, ++unit;
  return unit == 0 ? format_text("{:.0f} B", bytes) : format_text("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace tilewise
