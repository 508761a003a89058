#include "cuda/runtime/memory_check.h"

#include "core/format.h"
#include "cuda/runtime/tensor_map.h"

namespace tilewise::cuda {
namespace {

Status check_one(const Driver& d, const DeviceContext& device, const NamedTensor& n) {
  if (!n.tensor.given() || n.tensor.elements() == 0) return {};
  unsigned type = 0;
  int ordinal = -1;
  const int attributes[] = {kMemoryType, kDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  const CuResult r =
      d.pointer_attributes(2, attributes, values, reinterpret_cast<std::uint64_t>(n.tensor.data));
  // Memory that the driver knows nothing of is the host's: the type stays 0.
  if (r != 0 || type != kDeviceMemory)
    return {
        StatusCode::kInvalidArgument,
        format_text("{} points to host memory; accepted: memory of cuda:{}", n.name, device.index)};
  if (ordinal != device.index)
    return {StatusCode::kInvalidArgument,
            format_text("{} points to memory of cuda:{}; accepted: memory of cuda:{}", n.name,
                        ordinal, device.index)};
  return {};
}

}  // namespace

Status check_memory(const Driver& driver, const DeviceContext& device,
                    std::span<const NamedTensor> tensors) {
  for (const NamedTensor& n : tensors)
    if (Status s = check_one(driver, device, n); !s.ok()) return s;
  return {};
}

Status check_addressable(std::span<const NamedTensor> tensors) {
  for (const NamedTensor& n : tensors)
    if (const char* rule = why_not_tma(n.tensor); rule && n.tensor.elements())
      return {StatusCode::kUnsupported,
              format_text("{} can't be addressed by the GPU kernel; accepted: {}", n.name, rule)};
  return {};
}

}  // namespace tilewise::cuda
