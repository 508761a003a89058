// What a test asks of the driver that stands in for libcuda.so.1: devices that exist on paper only,
// and a record of what the library did with them. It computes nothing.
//
// LD_LIBRARY_PATH=build/fake gives any program these devices: how long a call takes without a
// driver (build/bin/tilewise_host_time), or which kernels a run will want (they end up in the
// cache).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace tilewise::test {

struct FakeDevice {
  int major = 9, minor = 0, multiprocessors = 132;
};

struct FakeLaunch {
  void* function;  // of one module in one context
  unsigned grid, block, shared_bytes;
  void* stream;
  std::vector<char> parameters;  // FakeCuda::parameter_bytes of them
};

// The first four are read when the library first looks for a driver; the rest at every call.
struct FakeCuda {
  std::vector<FakeDevice> devices = {{}, {}};
  int driver_version = 13000;
  int init_result = 0;
  int launch_result = 0;
  std::size_t parameter_bytes = 0;

  int module_loads = 0, pointer_queries = 0, tensor_maps = 0, pushes = 0;
  int strict_module_loads = 0;  // while the thread's capture mode was not relaxed
  std::vector<FakeLaunch> launches;
  std::mutex mutex;
};

__attribute__((visibility("default"))) FakeCuda& fake_cuda();

// `bytes` from `address` on belong to a device from now on; everything else is host memory.
// No bytes: what lies at `address` is the host's again.
__attribute__((visibility("default"))) void fake_device_memory(const void* address,
                                                               std::size_t bytes, int device);

// A context of the caller's own, made current on this thread; null takes it away again.
__attribute__((visibility("default"))) void* fake_context(int device);
__attribute__((visibility("default"))) void fake_make_current(void* context);

}  // namespace tilewise::test
