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
enum CuMemoryType : unsigned { kHostMemory = 1, kDeviceMemory = 2 };
enum CuTensorMapType { kTensorF16 = 6, kTensorBf16 = 9 };
enum CuTensorMapSwizzle { kSwizzle128 = 3 };
enum CuTensorMapPromotion { kPromoteL2To256 = 3 };

struct Driver {
  CuResult (*init)(unsigned flags);
  CuResult (*driver_version)(int* version);
  CuResult (*device_count)(int* count);
  CuResult (*device_get)(CuDevice* device, int ordinal);
  CuResult (*device_attribute)(int* value, int attribute, CuDevice device);
  CuResult (*device_name)(char* name, int size, CuDevice device);
  CuResult (*primary_context_retain)(CuContext* context, CuDevice device);
  CuResult (*context_push)(CuContext context);
  CuResult (*context_pop)(CuContext* context);
  CuResult (*module_load)(CuModule* module, const void* image);
  CuResult (*module_function)(CuFunction* function, CuModule module, const char* name);
  CuResult (*function_set)(CuFunction function, int attribute, int value);
  CuResult (*launch)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     CuStream stream, void** parameters, void** extra);
  CuResult (*tensor_map)(void* map, int type, unsigned rank, void* address,
                         const std::uint64_t* extents, const std::uint64_t* stride_bytes,
                         const std::uint32_t* box, const std::uint32_t* element_strides,
                         int interleave, int swizzle, int promotion, int out_of_bounds_fill);
  CuResult (*pointer_attribute)(void* value, int attribute, std::uint64_t pointer);
  CuResult (*error_text)(CuResult result, const char** text);
};

// Loaded and initialized once; kUnavailable where there is no driver or no device.
Expected<const Driver*> driver();

// kInternal with the driver's words, unless `result` is success.
Status driver_status(const Driver& driver, CuResult result, const char* what);

// A device by its index, with its primary context, which PyTorch, JAX and the run-time API share.
struct DeviceContext {
  int index = 0;
  CuContext context = nullptr;
  int multiprocessors = 0;
  int compute_capability = 0;  // 90 for Hopper
  std::string name;
};
Expected<const DeviceContext*> device_context(int index);

// Makes a context current for the life of this object.
class ContextScope {
 public:
  ContextScope(const Driver& driver, CuContext context) : driver_(driver) {
    driver_.context_push(context);
  }
  ~ContextScope() {
    CuContext previous;
    driver_.context_pop(&previous);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace tilewise::cuda
