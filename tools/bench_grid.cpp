// See bench_grid.h.
#include "bench_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "meter.h"
#include "random_tensor.h"
#include "results.h"

namespace tilewise::tools {
namespace {

using io::HostTensor;
using Shape = std::array<std::int64_t, kMaxRank>;

// "full", "causal" or "LEFT:RIGHT".
Expected<Mask> mask_of(const std::string& name) {
  Mask mask;
  if (name == "full") return mask;
  mask.causal = name == "causal";
  if (mask.causal) return mask;
  const char* const end = name.data() + name.size();
  const auto left = std::from_chars(name.data(), end, mask.left);
  const bool colon = left.ec == std::errc() && left.ptr != end && *left.ptr == ':';
  const auto right = std::from_chars(colon ? left.ptr + 1 : end, end, mask.right);
  if (colon && right.ec == std::errc() && right.ptr == end) return mask;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("--mask is \"{}\"; accepted are full, causal and LEFT:RIGHT", name));
}

// A point's tensors, and both passes on them.
class Bench {
 public:
  static Expected<Bench> make(const BenchPoint& point) {
    const Problem& p = point.problem;
    Bench bench;
    bench.backward_ = point.pass == "bwd";
    Expected<HostTensor> made[] = {
        random_tensor(p.dtype, Shape{{p.batch, p.seq_q, p.heads_q, p.head_dim}}, 1),
        random_tensor(p.dtype, Shape{{p.batch, p.seq_kv, p.heads_kv, p.head_dim}}, 2),
        random_tensor(p.dtype, Shape{{p.batch, p.seq_kv, p.heads_kv, p.head_dim_v}}, 3),
        random_tensor(p.dtype, Shape{{p.batch, p.seq_q, p.heads_q, p.head_dim_v}}, 4)};
    for (Expected<HostTensor>& t : made) {
      if (!t.ok()) return t.status();
      bench.tensors_.push_back(std::move(*t));
    }
    bench.in_.q = bench.tensors_[0].view();
    bench.in_.k = bench.tensors_[1].view();
    bench.in_.v = bench.tensors_[2].view();
    const Passes passes = bench.backward_ ? Passes::kForwardAndBackward : Passes::kForward;
    Expected<Results> results = allocate_results(p, bench.in_, passes);
    if (!results.ok()) return results.status();
    bench.results_ = std::move(*results);
    return bench;
  }

  const PassPlan& pass(const Plan& plan) const { return backward_ ? plan.backward : plan.forward; }

  // What the timed pass needs first.
  Status prepare(const Plan& plan) {
    return backward_ ? time_forward(plan, in_, results_.outputs()).status : Status();
  }
  Timed run(const Plan& plan) {
    return backward_ ? time_backward(plan, in_, results_.gradients(tensors_[3].view(), {}))
                     : time_forward(plan, in_, results_.outputs());
  }

 private:
  bool backward_ = false;
  std::vector<HostTensor> tensors_;  // Q, K, V, dO
  Inputs in_;
  Results results_;
};

}  // namespace

Expected<std::vector<BenchPoint>> points_of(const BenchGrid& g) {
  std::vector<BenchPoint> points;
  for (const std::string& pass : g.passes)
    for (const DType dtype : g.dtypes)
      for (const std::string& mask_name : g.masks) {
        const Expected<Mask> mask = mask_of(mask_name);
        if (!mask.ok()) return mask.status();
        for (const std::int64_t d : g.head_dims)
          for (const std::int64_t s : g.seqs) {
            Problem p;
            p.batch = g.batch;
            p.heads_q = g.heads_q;
            p.heads_kv = g.heads_kv ? g.heads_kv : g.heads_q;
            p.seq_q = p.seq_kv = s;
            p.head_dim = d;
            p.head_dim_v = g.head_dim_v ? g.head_dim_v : d;
            p.dtype = dtype;
            p.mask = *mask;
            points.push_back({pass, p, g.device});
          }
      }
  return points;
}

Expected<std::vector<Measured>> measure(const BenchPoint& point,
                                        const std::vector<Options>& options, int repeat) {
  std::vector<Plan> plans;
  for (const Options& o : options) {
    Expected<Plan> plan = make_plan(point.problem, point.device, o);
    if (!plan.ok()) return plan.status();
    plans.push_back(std::move(*plan));
  }
  Expected<Bench> bench = Bench::make(point);
  if (!bench.ok()) return bench.status();

  std::vector<Measured> results(plans.size());
  std::vector<std::vector<double>> ms(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const PassPlan& pass = bench->pass(plans[i]);
    if (pass.kernel.empty())
      return Status(StatusCode::kUnsupported,
                    fmt::format("--kernel {} has no {} pass", options[i].kernel, point.pass));
    results[i] = {pass.kernel, pass.isa, pass.threads, 0, pass.workspace_bytes, {}};
    Status s = bench->prepare(plans[i]);
    if (s.ok()) s = bench->run(plans[i]).status;
    if (!s.ok()) return s;
    if (point.device.kind == Device::Kind::kCuda) continue;  // its memory is not the process'
    results[i].peak_extra_bytes = peak_extra_bytes([&] { s = bench->run(plans[i]).status; });
    if (!s.ok()) return s;
  }
  for (int r = 0; r < repeat; ++r)
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Timed t = bench->run(plans[i]);
      if (!t.status.ok()) return t.status;
      ms[i].push_back(t.ms);
    }
  for (std::size_t i = 0; i < plans.size(); ++i) results[i].ms_median = median(std::move(ms[i]));
  return results;
}

}  // namespace tilewise::tools
