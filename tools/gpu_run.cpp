// See gpu_run.h.
#include "gpu_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tilewise::tools {
namespace {

constexpr std::size_t kGuardBytes = 4096, kAlignment = 256;

// The bytes from a tensor's first to behind its last element; nothing for an empty one.
struct Bytes {
  std::uintptr_t begin = 0, end = 0;
};
Bytes bytes_of(const Tensor& t) {
  if (!t.given() || t.elements() == 0) return {};
  std::int64_t low = 0, high = 0;
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t reach = (t.shape[i] - 1) * t.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(t.data);
  const auto size = size_of(t.dtype);
  return {base + static_cast<std::uintptr_t>(low * size),
          base + static_cast<std::uintptr_t>((high + 1) * size)};
}

std::array<Tensor*, 10> tensors_of(Inputs& in) {
  return {&in.q,
          &in.k,
          &in.v,
          &in.alibi_slopes,
          &in.bias,
          &in.sink,
          &in.cu_seqlens_q,
          &in.cu_seqlens_kv,
          &in.seqused_q,
          &in.seqused_kv};
}
std::array<Tensor*, 2> tensors_of(Outputs& out) {
  return {&out.o, &out.lse};
}
std::array<Tensor*, 9> tensors_of(Gradients& g) {
  return {&g.dq, &g.dk, &g.dv, &g.dbias, &g.dsink, &g.o, &g.lse, &g.d_o, &g.d_lse};
}
constexpr std::size_t kWrittenGradients = 5;  // the first of them

}  // namespace

Expected<DeviceCopy> DeviceCopy::make(int device, const Inputs& in, const Outputs& out,
                                      const Gradients& grads) {
  if (Status s = use_gpu(device); !s.ok()) return s;
  DeviceCopy copy;
  copy.in_ = in;
  copy.out_ = out;
  copy.grads_ = grads;
  std::vector<Tensor*> all;
  for (Tensor* t : tensors_of(copy.in_)) all.push_back(t);
  for (Tensor* t : tensors_of(copy.out_)) all.push_back(t);
  for (Tensor* t : tensors_of(copy.grads_)) all.push_back(t);
  std::vector<Bytes> bytes;
  for (const Tensor* t : all)
    if (const Bytes b = bytes_of(*t); b.end > b.begin) bytes.push_back(b);
  std::sort(bytes.begin(), bytes.end(),
            [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
  for (const Bytes& b : bytes)
    if (!copy.ranges_.empty() && b.begin < copy.ranges_.back().end)
      copy.ranges_.back().end = std::max(copy.ranges_.back().end, b.end);
    else
      copy.ranges_.push_back({b.begin, b.end, {}, 0});
  for (Range& range : copy.ranges_)
    if (Status s = copy.copy_range(range); !s.ok()) return s;

  for (const Tensor* t : tensors_of(copy.out_)) copy.written_.push_back(*t);
  const auto gradients = tensors_of(copy.grads_);
  for (std::size_t i = 0; i < kWrittenGradients; ++i) copy.written_.push_back(*gradients[i]);
  for (Tensor* t : all) *t = copy.moved(*t, device);
  return copy;
}

// Keeps the alignment that the tensor has in host memory.
Status DeviceCopy::copy_range(Range& range) const {
  const std::size_t bytes = range.end - range.begin;
  range.offset = kGuardBytes + range.begin % kAlignment;
  auto buffer = DeviceBuffer::create(range.offset + bytes + kGuardBytes);
  if (!buffer.ok()) return buffer.status();
  range.buffer = std::move(*buffer);
  return range.buffer.copy_in(range.offset, pointer_to(range.begin), bytes);
}

Tensor DeviceCopy::moved(const Tensor& host, int device) const {
  Tensor t = host;
  t.device = {Device::Kind::kCuda, device};
  const auto at = reinterpret_cast<std::uintptr_t>(host.data);
  const Bytes b = bytes_of(host);
  for (const Range& range : ranges_)
    if (b.begin >= range.begin && b.end <= range.end && b.end > b.begin)
      t.data = pointer_to(range.buffer.address() + range.offset + (at - range.begin));
  return t;
}

Status DeviceCopy::copy_out() const {
  for (const Range& range : ranges_) {
    const bool written = std::any_of(written_.begin(), written_.end(), [&](const Tensor& t) {
      const Bytes b = bytes_of(t);
      return b.end > b.begin && b.begin >= range.begin && b.begin < range.end;
    });
    if (!written) continue;
    const std::size_t bytes = range.end - range.begin;
    Status s = range.buffer.copy_out(range.offset, pointer_to(range.begin), bytes);
    const std::size_t end = range.offset + bytes;
    for (const auto& [from, count] :
         {std::pair(std::size_t{0}, range.offset), std::pair(end, range.buffer.bytes() - end)}) {
      std::vector<unsigned char> guard(count);
      if (s.ok()) s = range.buffer.copy_out(from, guard.data(), count);
      if (s.ok() && std::count(guard.begin(), guard.end(), 0xFF) != std::ssize(guard))
        s = {StatusCode::kInternal, "a GPU kernel wrote outside its tensors"};
    }
    if (!s.ok()) return s;
  }
  return {};
}

namespace {

// One pass on copies that are made already, with a workspace.
class GpuPass {
 public:
  GpuPass(const Plan& plan, const PassPlan& pass, const DeviceCopy& copy)
      : plan_(plan), pass_(pass), copy_(copy) {}
  Status allocate() {
    auto workspace = DeviceBuffer::create(pass_.workspace_bytes);
    if (!workspace.ok()) return workspace.status();
    workspace_ = std::move(*workspace);
    return {};
  }
  Status run() const {
    const Launch launch{pointer_to(workspace_.address()), workspace_.bytes(), nullptr};
    return &pass_ == &plan_.backward ? backward(plan_, copy_.in(), copy_.grads(), launch)
                                     : forward(plan_, copy_.in(), copy_.out(), launch);
  }
  // Milliseconds of a run, by `count` of them.
  Expected<double> time(const GpuTimer& timer, int count) const {
    if (Status s = timer.start(); !s.ok()) return s;
    for (int i = 0; i < count; ++i)
      if (Status s = run(); !s.ok()) return s;
    const auto ms = timer.stop();
    if (!ms.ok()) return ms;
    return *ms / count;
  }

 private:
  const Plan& plan_;
  const PassPlan& pass_;
  const DeviceCopy& copy_;
  DeviceBuffer workspace_;
};

}  // namespace

GpuTimed run_on_gpu(const Plan& plan, const PassPlan& pass, const Inputs& in, const Outputs& out,
                    const Gradients& grads) {
  const auto copy = DeviceCopy::make(plan.device.index, in, out, grads);
  if (!copy.ok()) return {copy.status()};
  GpuPass work(plan, pass, *copy);
  Status s = work.allocate();
  if (s.ok()) s = work.run();  // compiles
  if (!s.ok()) return {s};
  const auto timer = GpuTimer::create();
  if (!timer.ok()) return {timer.status()};
  auto ms = work.time(*timer, 1);
  constexpr double kEnoughMs = 1.0;
  if (ms.ok() && *ms < kEnoughMs)
    ms = work.time(*timer, std::clamp(static_cast<int>(kEnoughMs / *ms), 1, 100));
  if (!ms.ok()) return {ms.status()};
  return {copy->copy_out(), *ms};
}

Status run_passes_on_gpu(const Plan& plan, const Inputs& in, const Outputs& out,
                         const Gradients& grads) {
  const auto copy = DeviceCopy::make(plan.device.index, in, out, grads);
  if (!copy.ok()) return copy.status();
  for (const PassPlan* pass : {&plan.forward, &plan.backward}) {
    if (pass->kernel.empty()) continue;
    GpuPass work(plan, *pass, *copy);
    Status s = work.allocate();
    if (s.ok()) s = work.run();
    if (!s.ok()) return s;
  }
  return copy->copy_out();
}

}  // namespace tilewise::tools
