#include "cuda/runtime/memory_check.h"

#include "core/format.h"
#include "cuda/runtime/tensor_map.h"

namespace tilewise::cuda {
namespace {

Status check_one(const Driver& d, const DeviceContext& device, const NamedTensor& n) {
  if (!has_numbers(n.tensor)) return {};
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
    if (const char* rule = why_not_tma(n.tensor); rule && has_numbers(n.tensor))
      return {StatusCode::kUnsupported,
              format_text("{} can't be addressed by the GPU kernel; accepted: {}", n.name, rule)};
  return {};
}

Status check_lengths(const Inputs& in) {
  const NamedTensor all[] = {{"cu_seqlens_q", in.cu_seqlens_q},
                             {"cu_seqlens_kv", in.cu_seqlens_kv},
                             {"seqused_q", in.seqused_q},
                             {"seqused_kv", in.seqused_kv}};
  for (const NamedTensor& n : all)
    if (has_numbers(n.tensor) && n.tensor.shape[0] > 1 && n.tensor.strides[0] != 1)
      return {StatusCode::kUnsupported, format_text("{} has a stride of {}; accepted on a GPU: 1",
                                                    n.name, n.tensor.strides[0])};
  return {};
}

}  // namespace tilewise::cuda
