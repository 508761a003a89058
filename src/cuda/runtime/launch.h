// The one place that launches. A kernel is loaded once for each context and kept; finding it again
// costs a look-up by its key.
#pragma once

#include <string>

#include "cuda/runtime/driver.h"

namespace tilewise::cuda {

struct Kernel {
  CuFunction function = nullptr;
};

// `key` names the kernel in this process; `make_source` is called only when it isn't loaded yet.
// The kernel's entry point is called tilewise_kernel. Safe from any thread, and while a stream is
// being captured.
template <class MakeSource>
Expected<Kernel> find_kernel(const DeviceContext& device, const std::string& key, int smem_bytes,
                             MakeSource&& make_source);

// Whether a kernel may start beside the end of the one before it in the stream (programmatic
// dependent launch). It then waits by itself before it touches anything of that kernel's. Or
// whether its CTAs wait for each other, so that it must not start before all of them fit on the
// device (cooperative launch): two such kernels, half on it each, would wait for ever.
enum class Start { kAfterPrevious, kOverlapsPrevious, kAllAtOnce };

struct Grid {
  unsigned ctas = 0, threads = 0, smem_bytes = 0;
  Start start = Start::kAfterPrevious;
};

// `parameters` is the kernel's one argument, passed by value.
Status launch(const DeviceContext& device, Kernel kernel, Grid grid, void* stream,
              void* parameters);

// What find_kernel is made of.
Expected<Kernel> loaded_kernel(const DeviceContext& device, const std::string& key);
Expected<Kernel> load_kernel(const DeviceContext& device, const std::string& key, int smem_bytes,
                             const std::string& source);

template <class MakeSource>
Expected<Kernel> find_kernel(const DeviceContext& device, const std::string& key, int smem_bytes,
                             MakeSource&& make_source) {
  const auto loaded = loaded_kernel(device, key);
  return loaded.ok() ? loaded : load_kernel(device, key, smem_bytes, make_source());
}

}  // namespace tilewise::cuda
