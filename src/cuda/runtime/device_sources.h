// The device headers and the core headers that they include, as text inside the library: what
// NVRTC compiles from, on machines that have neither our sources nor a CUDA toolkit.
#pragma once

#include <cstddef>

namespace tilewise::cuda {

struct DeviceSource {
  const char* name;  // as an #include spells it
  const char* text;
};

struct DeviceSources {
  const DeviceSource* begin_;
  std::size_t count;
  const DeviceSource* begin() const { return begin_; }
  const DeviceSource* end() const { return begin_ + count; }
};

// Defined in the build folder, by cmake/embed_sources.cmake.
DeviceSources device_sources();

}  // namespace tilewise::cuda
