#include "cuda/runtime/launch.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "cuda/runtime/cubin_store.h"

namespace tilewise::cuda {
namespace {

struct Loaded {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, Kernel> kernels;  // by device and key
};

Loaded& loaded() {
  static Loaded all;
  return all;
}

}  // namespace

Expected<Kernel> loaded_kernel(const DeviceContext& device, const std::string& key) {
  const std::lock_guard lock(loaded().mutex);
  const auto found = loaded().kernels.find({device.index, key});
  if (found != loaded().kernels.end()) return found->second;
  return Status(StatusCode::kUnavailable, "not loaded yet");
}

Expected<Kernel> load_kernel(const DeviceContext& device, const std::string& key, int smem_bytes,
                             const std::string& source) {
  const auto d = driver();
  if (!d.ok()) return d.status();
  const auto cubin = cubin_for(source, "sm_90a");
  if (!cubin.ok()) return cubin.status();
  const ContextScope scope(**d, device.context);
  CuModule module = nullptr;
  Kernel kernel;
  CuResult r = (*d)->module_load(&module, cubin->data());
  if (!r) r = (*d)->module_function(&kernel.function, module, "tilewise_kernel");
  if (!r) r = (*d)->function_set(kernel.function, kMaxDynamicSharedBytes, smem_bytes);
  const Status s = driver_status(**d, r, "loading a kernel");
  if (!s.ok()) return s;
  const std::lock_guard lock(loaded().mutex);
  return loaded().kernels.try_emplace({device.index, key}, kernel).first->second;
}

Status launch(const DeviceContext& device, Kernel kernel, Grid grid, void* stream,
              void* parameters) {
  const auto d = driver();
  if (!d.ok()) return d.status();
  const ContextScope scope(**d, device.context);
  void* arguments[] = {parameters};
  const CuResult r =
      (*d)->launch(kernel.function, grid.ctas, 1, 1, grid.threads, 1, 1, grid.smem_bytes,
                   static_cast<CuStream>(stream), arguments, nullptr);
  return driver_status(**d, r, "launching a kernel");
}

}  // namespace tilewise::cuda
