// The status of every refused argument.
#pragma once

#include <string>
#include <utility>

#include "tilewise/status.hpp"

namespace tilewise {

inline Status invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace tilewise
