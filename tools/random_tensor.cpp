// See random_tensor.h.
#include "random_tensor.h"

#include <random>

namespace tilewise::tools {

Expected<io::HostTensor> random_tensor(DType dtype, std::span<const std::int64_t> shape,
                                       std::uint64_t seed) {
  Expected<io::HostTensor> t = io::HostTensor::create(DType::kF32, shape);
  if (!t.ok()) return t;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (float& x : t->as<float>()) x = normal(random);
  if (dtype == DType::kF32) return t;
  return io::convert(*t, dtype);
}

}  // namespace tilewise::tools
