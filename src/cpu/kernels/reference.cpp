// The float64 reference as a row of the table: computes, then rounds into the caller's tensors.
#include "reference/reference.h"

#include <functional>

#include "core/half.h"
#include "cpu/kernels/table.h"

namespace tilewise::cpu {
namespace {

void store(const Tensor& t, std::int64_t index, double value) {
  const float f = static_cast<float>(value);
  if (t.dtype == DType::kF32) static_cast<float*>(t.data)[index] = f;
  if (t.dtype == DType::kBF16) static_cast<std::uint16_t*>(t.data)[index] = f32_to_bf16(f);
  if (t.dtype == DType::kF16) static_cast<std::uint16_t*>(t.data)[index] = f32_to_f16(f);
}

// Row-major `values` into a tensor of any strides.
void write(const std::vector<double>& values, const Tensor& t) {
  if (!t.given()) return;
  std::size_t next = 0;
  const std::function<void(int, std::int64_t)> dimension = [&](int dim, std::int64_t index) {
    if (dim == t.rank) return store(t, index, values[next++]);
    for (std::int64_t i = 0; i < t.shape[dim]; ++i) dimension(dim + 1, index + i * t.strides[dim]);
  };
  dimension(0, 0);
}

}  // namespace

void forward_reference(const ForwardJob& job) {
  const reference::ForwardResult r = reference::forward(job.problem, job.in);
  write(r.o, job.out.o);
  write(r.lse, job.out.lse);
}

void backward_reference(const BackwardJob& job) {
  const Gradients& g = job.grads;
  const reference::BackwardResult r = reference::backward_given(job.problem, job.in, g);
  write(r.dq, g.dq);
  write(r.dk, g.dk);
  write(r.dv, g.dv);
  write(r.dbias, g.dbias);
  write(r.dsink, g.dsink);
}

}  // namespace tilewise::cpu
