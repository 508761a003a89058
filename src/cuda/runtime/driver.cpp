#include "cuda/runtime/driver.h"

#include <memory>
#include <mutex>
#include <vector>

#include "core/format.h"
#include "cuda/runtime/library.h"

namespace tilewise::cuda {
namespace {

constexpr int kOldestCuda = 12000;  // tensor maps

bool find_all(const Library& cuda, Driver& d) {
  return cuda.find("cuInit", d.init) && cuda.find("cuDriverGetVersion", d.driver_version) &&
         cuda.find("cuDeviceGetCount", d.device_count) && cuda.find("cuDeviceGet", d.device_get) &&
         cuda.find("cuDeviceGetAttribute", d.device_attribute) &&
         cuda.find("cuDeviceGetName", d.device_name) &&
         cuda.find("cuDevicePrimaryCtxRetain", d.primary_context_retain) &&
         cuda.find("cuCtxPushCurrent_v2", d.context_push) &&
         cuda.find("cuCtxPopCurrent_v2", d.context_pop) &&
         cuda.find("cuCtxGetCurrent", d.context_current) &&
         cuda.find("cuCtxGetDevice", d.context_device) && cuda.find("cuCtxGetId", d.context_id) &&
         cuda.find("cuThreadExchangeStreamCaptureMode", d.capture_mode) &&
         cuda.find("cuModuleLoadData", d.module_load) &&
         cuda.find("cuModuleGetFunction", d.module_function) &&
         cuda.find("cuFuncSetAttribute", d.function_set) &&
         cuda.find("cuLaunchKernelEx", d.launch) &&
         cuda.find("cuTensorMapEncodeTiled", d.tensor_map) &&
         cuda.find("cuPointerGetAttributes", d.pointer_attributes) &&
         cuda.find("cuGetErrorString", d.error_text);
}

Expected<Driver> load() {
  const auto library = Library::open({"libcuda.so.1"});
  if (!library.ok())
    return Status(StatusCode::kUnavailable,
                  "the CUDA driver (libcuda.so.1) is not on this machine; the CPU backend is");
  Driver d{};
  const bool complete = find_all(*library, d);
  if (d.driver_version) d.driver_version(&d.version);
  if (!complete || d.version < kOldestCuda)
    return Status(StatusCode::kUnavailable,
                  format_text("the CUDA driver supports CUDA {}.{}; accepted: 12.0 or newer",
                              d.version / 1000, d.version % 1000 / 10));
  const Status s = driver_status(d, d.init(0), "the CUDA driver's start");
  if (!s.ok()) return Status(StatusCode::kUnavailable, s.message());
  return d;
}

Expected<DeviceContext> open_device(const Driver& d, int index) {
  int count = 0;
  d.device_count(&count);
  if (index < 0 || index >= count)
    return Status(StatusCode::kUnavailable,
                  format_text("device is cuda:{}; accepted: the {} CUDA device{} of this machine",
                              index, count, count == 1 ? "" : "s"));
  DeviceContext out;
  out.index = index;
  int major = 0, minor = 0;
  char name[128] = {};
  CuResult r = d.device_get(&out.handle, index);
  if (!r) r = d.device_attribute(&out.multiprocessors, kMultiprocessorCount, out.handle);
  if (!r) r = d.device_attribute(&major, kComputeCapabilityMajor, out.handle);
  if (!r) r = d.device_attribute(&minor, kComputeCapabilityMinor, out.handle);
  if (!r) r = d.device_name(name, sizeof name - 1, out.handle);
  if (!r) r = d.primary_context_retain(&out.context, out.handle);
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
          format_text("{} failed: {} (CUDA error {})", what, text ? text : "?", result)};
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

Expected<int> device_count() {
  const auto d = driver();
  if (!d.ok()) return d.status();
  int count = 0;
  const Status s = driver_status(**d, (*d)->device_count(&count), "counting the CUDA devices");
  if (!s.ok()) return s;
  return count;
}

Expected<const DeviceContext*> hopper_device(int index) {
  const auto device = device_context(index);
  if (!device.ok() || (*device)->compute_capability == 90) return device;
  return Status(StatusCode::kUnavailable,
                format_text("cuda:{} is {} (compute capability {:.1f}); accepted: 9.0 (Hopper)",
                            index, (*device)->name, (*device)->compute_capability / 10.0));
}

ContextScope::ContextScope(const Driver& driver, const DeviceContext& device) : driver_(driver) {
  CuContext current = nullptr;
  CuDevice of = -1;
  driver.context_current(&current);
  if (!current || driver.context_device(&of) != 0 || of != device.handle) {
    current = device.context;
    pushed_ = driver.context_push(current) == 0;
  }
  unsigned long long id = 0;
  driver.context_id(current, &id);
  id_ = id;
}

}  // namespace tilewise::cuda
