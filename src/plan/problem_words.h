// A problem as one line of words, for plans and for messages.
#pragma once

#include <string>

#include "tilewise/problem.hpp"

namespace tilewise {

std::string problem_words(const Problem& problem);

}  // namespace tilewise
