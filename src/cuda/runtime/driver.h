// The CUDA driver, opened at run time. The few types and constants that we need are declared here,
// from the driver API's documentation; nothing of NVIDIA's headers is included, so the library
// builds and starts where there is no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tilewise/status.hpp"

namespace tilewise::cuda {

using CuResult = int;  // 0: success
using CuDevice = int;
using CuContext = struct CuContextOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuStream = struct CuStreamOpaque*;

enum CuDeviceAttribute {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};
enum CuFunctionAttribute { kMaxDynamicSharedBytes = 8 };
enum CuPointerAttribute { kMemoryType = 2, kDeviceOrdinal = 9 };
enum CuCaptureMode { kCaptureRelaxed = 2 };
enum CuMemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2 };
enum CuTensorMapType { kTensorF16 = 6, kTensorBf16 = 9 };
enum CuTensorMapSwizzle { kSwizzle128 = 3 };
enum CuTensorMapPromotion { kPromoteL2To256 = 3 };

enum CuLaunchAttributeId : int {
  kCooperative = 2,
  kOverlapsPrevious = 6,  // programmatic stream serialization
};

struct CuLaunchAttribute {
  alignas(8) int id;
  alignas(8) int value;
  char unused[60];  // of a union of 64 bytes
};
struct CuLaunch {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  int version;  // of CUDA, as the driver supports it: 13000 for 13.0
  CuResult (*init)(unsigned flags);
  CuResult (*driver_version)(int* version);
  CuResult (*device_count)(int* count);
  CuResult (*device_get)(CuDevice* device, int ordinal);
  CuResult (*device_attribute)(int* value, int attribute, CuDevice device);
  CuResult (*device_name)(char* name, int size, CuDevice device);
  CuResult (*primary_context_retain)(CuContext* context, CuDevice device);
  CuResult (*context_push)(CuContext context);
  CuResult (*context_pop)(CuContext* context);
  CuResult (*context_current)(CuContext* context);
  CuResult (*context_device)(CuDevice* device);  // of the current context
  CuResult (*context_id)(CuContext context, unsigned long long* id);
  CuResult (*capture_mode)(int* mode);  // the calling thread's, swapped with *mode
  CuResult (*module_load)(CuModule* module, const void* image);
  CuResult (*module_function)(CuFunction* function, CuModule module, const char* name);
  CuResult (*function_set)(CuFunction function, int attribute, int value);
  CuResult (*launch)(const CuLaunch* launch, CuFunction function, void** parameters, void** extra);
  CuResult (*tensor_map)(void* map, int type, unsigned rank, void* address,
                         const std::uint64_t* extents, const std::uint64_t* stride_bytes,
                         const std::uint32_t* box, const std::uint32_t* element_strides,
                         int interleave, int swizzle, int promotion, int out_of_bounds_fill);
  CuResult (*pointer_attributes)(unsigned count, const int* attributes, void** values,
                                 std::uint64_t pointer);
  CuResult (*error_text)(CuResult result, const char** text);
};

// Loaded and initialized once; kUnavailable where there is no driver or no device.
Expected<const Driver*> driver();

// kInternal with the driver's words, unless `result` is success.
Status driver_status(const Driver& driver, CuResult result, const char* what);

// A device by its index, with its primary context, which PyTorch, JAX and the run-time API share.
struct DeviceContext {
  int index = 0;
  CuDevice handle = 0;
  CuContext context = nullptr;
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for Hopper
  std::string name;
};
Expected<const DeviceContext*> device_context(int index);
Expected<int> device_count();

// As device_context; kUnavailable for a device that kernels for sm_90a don't run on.
Expected<const DeviceContext*> hopper_device(int index);

// For the life of this object a context of the device is current: the caller's own where there is
// one, since that is the one which its stream belongs to, else the primary one.
class ContextScope {
 public:
  ContextScope(const Driver& driver, const DeviceContext& device);
  ~ContextScope() {
    CuContext previous;
    if (pushed_) driver_.context_pop(&previous);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  // Of the current context, never used twice in a process; what is kept for a context is kept by
  // it.
  std::uint64_t id() const { return id_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  std::uint64_t id_ = 0;
};

}  // namespace tilewise::cuda
