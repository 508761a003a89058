#include "api/check_overlap.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/format.h"
#include "core/invalid.h"

namespace tilewise {
namespace {

// A tensor as bytes: from the first to behind the last, and the dimensions that move.
struct Footprint {
  std::int64_t begin = 0, end = 0, element = 0;
  struct Dimension {
    std::int64_t extent, stride;  // stride in bytes
  };
  std::array<Dimension, kMaxRank> dims{};  // by falling stride
  std::size_t count = 0;

  explicit Footprint(const Tensor& t) {
    if (!t.given() || t.elements() == 0) return;
    element = size_of(t.dtype);
    begin = reinterpret_cast<std::intptr_t>(t.data);
    std::int64_t reach = 0;
    for (int i = 0; i < t.rank; ++i) {
      if (t.shape[i] == 1 || t.strides[i] == 0) continue;
      constexpr std::int64_t kFar = std::int64_t{1} << 56;  // no memory is that large
      if (t.strides[i] > kFar / t.shape[i] || t.strides[i] < -kFar / t.shape[i]) {
        begin = 0;
        return;
      }
      // A dimension that runs backwards covers what one from its last element on does.
      const std::int64_t stride = t.strides[i] * element;
      if (stride < 0) begin += (t.shape[i] - 1) * stride;
      reach += (t.shape[i] - 1) * std::abs(stride);
      std::size_t at = count++;
      for (; at > 0 && dims[at - 1].stride < std::abs(stride); --at) dims[at] = dims[at - 1];
      dims[at] = {t.shape[i], std::abs(stride)};
    }
    end = begin + reach + element;
  }

  bool empty() const { return end == begin; }
  // No gap between its elements.
  bool dense() const {
    std::int64_t elements = 1;
    for (std::size_t i = 0; i < count; ++i) elements *= dims[i].extent;
    return elements * element == end - begin;
  }
  bool same_strides(const Footprint& other) const {
    return element == other.element &&
           std::equal(dims.begin(), dims.begin() + count, other.dims.begin(),
                      other.dims.begin() + other.count,
                      [](const Dimension& a, const Dimension& b) { return a.stride == b.stride; });
  }
  bool holds(std::int64_t address) const { return address >= begin && address < end; }
};

// Whether `distance` bytes lie between an element of `a` and one of `b`, to less than an element,
// by the dimensions from `at` on. Steps of the widest stride come as near as they can, from both
// sides; narrower ones make up the rest.
bool meets(const Footprint& a, const Footprint& b, std::size_t at, std::int64_t distance) {
  if (at == a.count) return distance > -a.element && distance < a.element;
  const std::int64_t stride = a.dims[at].stride;
  const std::int64_t most = a.dims[at].extent - 1, least = 1 - b.dims[at].extent;
  const std::int64_t below = distance >= 0 ? distance / stride : (distance - stride + 1) / stride;
  for (const std::int64_t step : {below, below + 1})
    if (step >= least && step <= most && meets(a, b, at + 1, distance - step * stride)) return true;
  return false;
}

}  // namespace

bool overlap(const Tensor& left, const Tensor& right) {
  const Footprint a(left), b(right);
  if (a.empty() || b.empty() || a.end <= b.begin || b.end <= a.begin) return false;
  if (left.data == right.data) return true;
  if (a.same_strides(b)) return meets(a, b, 0, b.begin - a.begin);
  const auto touches = [](const Footprint& dense, const Footprint& other) {
    return dense.dense() && (dense.holds(other.begin) || dense.holds(other.end - 1));
  };
  return touches(a, b) || touches(b, a);
}

Status check_overlap(std::span<const PlacedTensor> written, std::span<const PlacedTensor> read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    const char* const name = written[i].name;
    const Tensor& tensor = written[i].tensor;
    for (int dim = 0; tensor.given() && dim < tensor.rank; ++dim)
      if (tensor.strides[dim] == 0 && tensor.shape[dim] > 1 && tensor.elements() > 0)
        return invalid(
            format_text("{} has stride 0 in dimension {}; accepted: a place of its own "
                        "for every element that is written",
                        name, dim));
    const auto clash = [&](std::span<const PlacedTensor> others) -> const PlacedTensor* {
      for (const PlacedTensor& other : others)
        if (overlap(tensor, other.tensor)) return &other;
      return nullptr;
    };
    const PlacedTensor* other = clash(read);
    if (!other) other = clash(written.subspan(i + 1));
    if (other)
      return invalid(format_text("{} overlaps {}; accepted: outputs with memory of their own", name,
                                 other->name));
  }
  return {};
}

}  // namespace tilewise
