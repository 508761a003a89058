#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include "core/format.h"

#include <fmt/format.h>

namespace tilewise {

std::string format_arguments(fmt::string_view text, fmt::format_args arguments) {
  return fmt::vformat(text, arguments);
}

}  // namespace tilewise
