// The whole C++ face. tilewise.h is the C face, and the only one with a binary promise.
#pragma once

#include "tilewise/attention.hpp"
#include "tilewise/plan.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/status.hpp"
#include "tilewise/tensor.hpp"
