#include "cuda/runtime/tensor_map.h"

#include <algorithm>

namespace tilewise::cuda {
namespace {

struct Dimension {
  std::uint64_t extent, stride_bytes;
};

// A dimension of one element has no stride that matters; TMA wants a legal one all the same.
Dimension dimension(const Tensor& t, int i) {
  const auto extent = static_cast<std::uint64_t>(std::max<std::int64_t>(t.shape[i], 1));
  if (extent == 1) return {1, 16};
  return {extent, static_cast<std::uint64_t>(t.strides[i]) * 2};
}

}  // namespace

const char* why_not_tma(const Tensor& t) {
  if (reinterpret_cast<std::uintptr_t>(t.data) % 16) return "its address is a multiple of 16";
  for (int i = 0; i + 1 < t.rank; ++i) {
    if (t.shape[i] <= 1) continue;
    if (t.strides[i] % 8) return "its strides are multiples of 8 elements";
    if (t.strides[i] < 0 || t.strides[i] >= std::int64_t{1} << 39)
      return "its strides are from 0 to 2^39 elements";
    if (t.shape[i] > std::int64_t{1} << 31) return "its extents are at most 2^31";
  }
  return nullptr;
}

Expected<TensorMap> make_tensor_map(const Driver& driver, const Tensor& t, TmaBox box) {
  const int rows = t.rank - 3, heads = t.rank - 2;  // the dimension that holds S, and H
  const Dimension s = dimension(t, rows), h = dimension(t, heads);
  const Dimension b = t.rank == 4 ? dimension(t, 0) : Dimension{1, 16};
  const auto columns = static_cast<std::uint64_t>(t.shape[t.rank - 1]);
  const bool packed = box.packed_heads > 1;
  const Dimension &second = packed ? h : s, &third = packed ? s : h;
  const std::uint64_t extents[] = {columns, second.extent, third.extent, b.extent};
  const std::uint64_t strides[] = {second.stride_bytes, third.stride_bytes, b.stride_bytes};
  const auto rows_of_head = static_cast<std::uint32_t>(box.rows / box.packed_heads);
  const auto packed_heads = static_cast<std::uint32_t>(box.packed_heads);
  const std::uint32_t boxes[] = {64, packed ? packed_heads : rows_of_head,
                                 packed ? rows_of_head : 1, 1};
  const std::uint32_t ones[] = {1, 1, 1, 1};
  TensorMap map;
  const CuResult r = driver.tensor_map(
      &map, t.dtype == DType::kBF16 ? kTensorBf16 : kTensorF16, 4, t.data, extents, strides, boxes,
      ones, /*interleave: none*/ 0, kSwizzle128, kPromoteL2To256, /*fill: zeros*/ 0);
  const Status status = driver_status(driver, r, "encoding a tensor map");
  if (!status.ok()) return status;
  return map;
}

}  // namespace tilewise::cuda
