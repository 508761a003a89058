#include "cuda/runtime/driver.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <vector>

#include "cuda/runtime/library.h"

namespace tilewise::cuda {
namespace {

bool find_all(const Library& cuda, Driver& d) {
  return cuda.find("cuInit", d.init) && cuda.find("cuDriverGetVersion", d.driver_version) &&
         cuda.find("cuDeviceGetCount", d.device_count) && cuda.find("cuDeviceGet", d.device_get) &&
         cuda.find("cuDeviceGetAttribute", d.device_attribute) &&
         cuda.find("cuDeviceGetName", d.device_name) &&
         cuda.find("cuDevicePrimaryCtxRetain", d.primary_context_retain) &&
         cuda.find("cuCtxPushCurrent_v2", d.context_push) &&
         cuda.find("cuCtxPopCurrent_v2", d.context_pop) &&
         cuda.find("cuModuleLoadData", d.module_load) &&
         cuda.find("cuModuleGetFunction", d.module_function) &&
         cuda.find("cuFuncSetAttribute", d.function_set) && cuda.find("cuLaunchKernel", d.launch) &&
         cuda.find("cuTensorMapEncodeTiled", d.tensor_map) &&
         cuda.find("cuPointerGetAttribute", d.pointer_attribute) &&
         cuda.find("cuGetErrorString", d.error_text);
}

Expected<Driver> load() {
  const auto library = Library::open({"libcuda.so.1"});
  if (!library.ok())
    return Status(StatusCode::kUnavailable,
                  "the CUDA driver (libcuda.so.1) is not on this machine; the CPU backend is");
  Driver d{};
  if (!find_all(*library, d))
    return Status(StatusCode::kUnavailable,
                  "the CUDA driver is older than 12.0, which tensor maps need");
  const Status s = driver_status(d, d.init(0), "the CUDA driver's start");
  if (!s.ok()) return Status(StatusCode::kUnavailable, s.message());
  return d;
}

Expected<DeviceContext> open_device(const Driver& d, int index) {
  int count = 0;
  d.device_count(&count);
  if (index < 0 || index >= count)
    return Status(StatusCode::kUnavailable,
                  fmt::format("device is cuda:{}; this machine has {} CUDA devices", index, count));
  DeviceContext out;
  out.index = index;
  CuDevice device = 0;
  int major = 0, minor = 0;
  char name[128] = {};
  CuResult r = d.device_get(&device, index);
  if (!r) r = d.device_attribute(&out.multiprocessors, kMultiprocessorCount, device);
  if (!r) r = d.device_attribute(&major, kComputeCapabilityMajor, device);
  if (!r) r = d.device_attribute(&minor, kComputeCapabilityMinor, device);
  if (!r) r = d.device_name(name, sizeof name - 1, device);
  if (!r) r = d.primary_context_retain(&out.context, device);
  const Status s = driver_status(d, r, "opening the CUDA device");
  if (!s.ok()) return s;
  out.compute_capability = 10 * major + minor;
  out.name = name;
  return out;
}

}  // namespace

Expected<const Driver*> driver() {
  static const Expected<Driver> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

Status driver_status(const Driver& driver, CuResult result, const char* what) {
  if (result == 0) return {};
  const char* text = nullptr;
  driver.error_text(result, &text);
  return {StatusCode::kInternal,
          fmt::format("{} failed: {} (CUDA error {})", what, text ? text : "?", result)};
}

Expected<const DeviceContext*> device_context(int index) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<DeviceContext>> open;
  const auto d = driver();
  if (!d.ok()) return d.status();
  const std::lock_guard lock(mutex);
  for (const auto& device : open)
    if (device->index == index) return device.get();
  auto opened = open_device(**d, index);
  if (!opened.ok()) return opened.status();
  open.push_back(std::make_unique<DeviceContext>(std::move(*opened)));
  return open.back().get();
}

}  // namespace tilewise::cuda
