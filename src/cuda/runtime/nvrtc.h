// NVRTC, the run-time compiler, opened at run time: device source text to a cubin.
#pragma once

#include <string>

#include "tilewise/status.hpp"

namespace tilewise::cuda {

struct Compiled {
  std::string cubin;
  std::string log;  // ptxas' resource report
};

// "13.0", or why there is no NVRTC here.
Expected<std::string> nvrtc_version();

// Compiles `source`, which may include any of device_sources() by name, for `arch` ("sm_90a").
Expected<Compiled> nvrtc_compile(const std::string& source, const std::string& arch);

}  // namespace tilewise::cuda
