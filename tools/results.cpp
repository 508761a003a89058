// See results.h.
#include "results.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace tilewise::tools {
namespace {

using io::HostTensor;
using Shape = std::vector<std::int64_t>;

Shape shape_of(const Tensor& t) {
  return {t.shape.begin(), t.shape.begin() + t.rank};
}

template <class Work>
Timed timed(Work&& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Timed t{work()};
  t.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return t;
}

}  // namespace

Gradients Results::gradients(const Tensor& d_o, const Tensor& d_lse) const {
  return {o.view(),  lse.view(), d_o,          d_lse,       dq.view(),
          dk.view(), dv.view(),  dbias.view(), dsink.view()};
}

Expected<Results> allocate_results(const Problem& p, const Inputs& in, Passes passes) {
  Results r;
  Status failed;
  const auto make = [&](HostTensor& to, DType dtype, const Shape& shape) {
    if (!failed.ok()) return;
    Expected<HostTensor> made = HostTensor::create(dtype, shape);
    if (!made.ok()) {
      failed = made.status();
      return;
    }
    to = std::move(*made);
    if (to.bytes()) std::memset(to.data(), 0, static_cast<std::size_t>(to.bytes()));
  };
  Shape o = shape_of(in.q);
  o.back() = p.head_dim_v;
  make(r.o, p.out_dtype.value_or(p.dtype), o);
  make(r.lse, DType::kF32,
       p.varlen.cu_seqlens_q ? Shape{p.heads_q, p.varlen.total_q}
                             : Shape{p.batch, p.heads_q, p.seq_q});
  if (passes == Passes::kForwardAndBackward) {
    make(r.dq, p.dtype, shape_of(in.q));
    make(r.dk, p.dtype, shape_of(in.k));
    make(r.dv, p.dtype, shape_of(in.v));
    if (p.bias.present) make(r.dbias, DType::kF32, shape_of(in.bias));
    if (p.sink) make(r.dsink, DType::kF32, {p.heads_q});
  }
  if (!failed.ok()) return failed;
  return r;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Timed time_forward(const Plan& plan, const Inputs& in, const Outputs& out) {
  if (plan.device.kind == Device::Kind::kCuda) return run_on_gpu(plan, plan.forward, in, out, {});
  const Workspace space(plan.forward);
  return timed([&] { return forward(plan, in, out, space.launch()); });
}

Timed time_backward(const Plan& plan, const Inputs& in, const Gradients& grads) {
  if (plan.device.kind == Device::Kind::kCuda)
    return run_on_gpu(plan, plan.backward, in, {}, grads);
  const Workspace space(plan.backward);
  return timed([&] { return backward(plan, in, grads, space.launch()); });
}

}  // namespace tilewise::tools
