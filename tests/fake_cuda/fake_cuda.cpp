// The functions of the driver API that src/cuda/runtime/driver.cpp asks for. See fake_cuda.h.
#include "fake_cuda/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

namespace tilewise::test {
namespace {

constexpr int kInvalidValue = 1, kInvalidContext = 201;

struct Context {
  int device;
  unsigned long long id;
};
struct Module {
  Context* context;
};
struct Range {
  std::size_t bytes;
  int device;
};

std::deque<Context> contexts;  // addresses stay
std::map<int, Context*> primary;
std::deque<Module> modules;
std::map<std::uintptr_t, Range> memory;
thread_local std::vector<Context*> stack;
thread_local int thread_capture_mode = 0;

Context* new_context(int device) {
  contexts.push_back({device, contexts.size() + 1});
  return &contexts.back();
}

}  // namespace

FakeCuda& fake_cuda() {
  static FakeCuda fake;
  return fake;
}

void fake_device_memory(const void* address, std::size_t bytes, int device) {
  const std::lock_guard lock(fake_cuda().mutex);
  if (bytes == 0)
    memory.erase(reinterpret_cast<std::uintptr_t>(address));
  else
    memory[reinterpret_cast<std::uintptr_t>(address)] = {bytes, device};
}

void* fake_context(int device) {
  const std::lock_guard lock(fake_cuda().mutex);
  return new_context(device);
}

void fake_make_current(void* context) {
  stack.clear();
  if (context) stack.push_back(static_cast<Context*>(context));
}

extern "C" {
#define FAKE __attribute__((visibility("default"))) int

FAKE cuInit(unsigned) {
  return fake_cuda().init_result;
}
// NVRTC looks for what only a real driver has.
FAKE cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kInvalidValue;
}
FAKE cuDriverGetVersion(int* version) {
  *version = fake_cuda().driver_version;
  return 0;
}
FAKE cuDeviceGetCount(int* count) {
  *count = static_cast<int>(fake_cuda().devices.size());
  return 0;
}
FAKE cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
FAKE cuDeviceGetAttribute(int* value, int attribute, int device) {
  const FakeDevice& d = fake_cuda().devices[static_cast<std::size_t>(device)];
  *value = attribute == 16 ? d.multiprocessors : attribute == 75 ? d.major : d.minor;
  return 0;
}
FAKE cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size));
  return 0;
}
FAKE cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(fake_cuda().mutex);
  Context*& own = primary[device];
  if (!own) own = new_context(device);
  *context = own;
  return 0;
}
FAKE cuCtxPushCurrent_v2(void* context) {
  stack.push_back(static_cast<Context*>(context));
  const std::lock_guard lock(fake_cuda().mutex);
  ++fake_cuda().pushes;
  return 0;
}
FAKE cuCtxPopCurrent_v2(void** context) {
  if (stack.empty()) return kInvalidContext;
  *context = stack.back();
  stack.pop_back();
  return 0;
}
FAKE cuCtxGetCurrent(void** context) {
  *context = stack.empty() ? nullptr : stack.back();
  return 0;
}
FAKE cuCtxGetDevice(int* device) {
  if (stack.empty()) return kInvalidContext;
  *device = stack.back()->device;
  return 0;
}
FAKE cuCtxGetId(void* context, unsigned long long* id) {
  *id = static_cast<Context*>(context)->id;
  return 0;
}
FAKE cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, thread_capture_mode);
  return 0;
}
FAKE cuModuleLoadData(void** module, const void* image) {
  if (stack.empty()) return kInvalidContext;
  const char* const bytes = static_cast<const char*>(image);
  if (std::strncmp(bytes, "cubin", 5) != 0 && std::strncmp(bytes,
                                                           "\x7f"
                                                           "ELF",
                                                           4) != 0)
    return 200;
  const std::lock_guard lock(fake_cuda().mutex);
  ++fake_cuda().module_loads;
  fake_cuda().strict_module_loads += thread_capture_mode != 2;
  modules.push_back({stack.back()});
  *module = &modules.back();
  return 0;
}
FAKE cuModuleGetFunction(void** function, void* module, const char*) {
  *function = module;
  return 0;
}
FAKE cuFuncSetAttribute(void*, int, int) {
  return 0;
}
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
};
FAKE cuLaunchKernelEx(const LaunchConfig* how, void* function, void** parameters, void**) {
  FakeCuda& fake = fake_cuda();
  if (stack.empty() || static_cast<Module*>(function)->context != stack.back())
    return kInvalidContext;
  const std::lock_guard lock(fake.mutex);
  if (fake.launch_result) return fake.launch_result;
  const char* const bytes = static_cast<const char*>(parameters[0]);
  fake.launches.push_back({function,
                           how->grid[0],
                           how->block[0],
                           how->shared_bytes,
                           how->stream,
                           {bytes, bytes + fake.parameter_bytes}});
  return 0;
}
FAKE cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const std::uint64_t*,
                            const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int,
                            int, int, int) {
  std::memcpy(map, &address, sizeof address);
  const std::lock_guard lock(fake_cuda().mutex);
  ++fake_cuda().tensor_maps;
  return 0;
}
FAKE cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                            std::uint64_t pointer) {
  const std::lock_guard lock(fake_cuda().mutex);
  ++fake_cuda().pointer_queries;
  auto range = memory.upper_bound(pointer);
  const bool found =
      range != memory.begin() && pointer - std::prev(range)->first < std::prev(range)->second.bytes;
  for (unsigned i = 0; i < count; ++i) {
    const int value = attributes[i] == 2 ? 2 * found : found ? std::prev(range)->second.device : -2;
    std::memcpy(values[i], &value, sizeof value);
  }
  return 0;
}
// Device memory is the host's.
FAKE cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  void* const memory_of = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<std::uint64_t>(memory_of);
  fake_device_memory(memory_of, bytes, stack.empty() ? 0 : stack.back()->device);
  return 0;
}
FAKE cuMemFree_v2(std::uint64_t address) {
  fake_device_memory(reinterpret_cast<void*>(address), 0, 0);
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
FAKE cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
FAKE cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
FAKE cuMemsetD8_v2(std::uint64_t to, unsigned char value, std::size_t bytes) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}
FAKE cuEventCreate(void** event, unsigned) {
  *event = stack.data();  // any address
  return 0;
}
FAKE cuEventDestroy_v2(void*) {
  return 0;
}
FAKE cuEventRecord(void*, void*) {
  return 0;
}
FAKE cuEventSynchronize(void*) {
  return 0;
}
FAKE cuEventElapsedTime(float* ms, void*, void*) {
  *ms = 0.25f;
  return 0;
}
FAKE cuGetErrorString(int result, const char** text) {
  *text = result == 700   ? "an illegal memory access was encountered"
          : result == 100 ? "no CUDA-capable device is detected"
                          : "some error";
  return result == kInvalidValue;
}
}

}  // namespace tilewise::test
