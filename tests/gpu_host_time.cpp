// What forward() costs the host on a GPU, launch included: with a plan and tensors seen before, and
// with tensors that are new each time but a kernel that is loaded. Exits with 1 when a bound is
// passed. Part of `./dev gpu-test`.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "cuda/runtime/driver.h"
#include "tilewise/attention.hpp"
#include "tools/gpu_memory.h"

namespace {

using namespace tilewise;
using tools::DeviceBuffer;
using Clock = std::chrono::steady_clock;

constexpr double kSeenBound = 5, kNewBound = 10;          // microseconds
constexpr int kRounds = 200, kCalls = 50, kFresh = 1024;  // calls of a round fit the driver's queue
constexpr std::int64_t kSeq = 128, kHeads = 2, kDim = 64;

[[noreturn]] void fail(const Status& s) {
  fmt::print(stderr, "host time: {}\n", s.message());
  std::exit(2);
}

// A small causal problem's tensors. `at` moves all of them through one buffer.
struct Tensors {
  static constexpr std::size_t kBytes = 2 * kSeq * kHeads * kDim;
  static constexpr std::size_t kStep = 256;

  explicit Tensors(std::uint64_t address) : base(address) {}

  void move_to(std::size_t place) {
    std::uint64_t at = base + place * kStep;
    for (Tensor* t : {&in.q, &in.k, &in.v, &out.o}) {
      *t = make_tensor(reinterpret_cast<void*>(at), DType::kBF16, 1, kSeq, kHeads, kDim);
      t->device = {Device::Kind::kCuda, 0};
      at += kBytes + kFresh * kStep;
    }
  }
  static constexpr std::size_t all_bytes() { return 4 * (kBytes + (kFresh + 1) * kStep); }

  std::uint64_t base;
  Inputs in;
  Outputs out;
};

// The median over rounds of a call's mean microseconds; the device is waited for in between.
template <class Call>
double microseconds(const DeviceBuffer& memory, Call&& call) {
  std::vector<double> rounds;
  int n = 0;
  for (int r = 0; r < kRounds; ++r) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i)
      if (const Status s = call(n++); !s.ok()) fail(s);
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    rounds.push_back(took.count() / kCalls);
    char byte;
    if (const Status s = memory.copy_out(0, &byte, 1); !s.ok()) fail(s);  // waits
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace

int main() {
  if (const Status s = tools::use_gpu(0); !s.ok()) fail(s);
  const auto memory = DeviceBuffer::create(Tensors::all_bytes());
  if (!memory.ok()) fail(memory.status());
  Problem p;
  p.dtype = DType::kBF16;
  p.heads_q = p.heads_kv = kHeads;
  p.seq_q = p.seq_kv = kSeq;
  p.head_dim = p.head_dim_v = kDim;
  p.mask.causal = true;
  const auto plan = make_plan(p, {Device::Kind::kCuda, 0});
  if (!plan.ok()) fail(plan.status());
  Tensors t(memory->address());
  const auto call = [&](std::size_t place) {
    t.move_to(place);
    return forward(*plan, t.in, t.out);
  };
  if (const Status s = call(0); !s.ok()) fail(s);  // compiles and loads
  const double seen = microseconds(*memory, [&](int) { return call(0); });
  const double fresh =
      microseconds(*memory, [&](int n) { return call(static_cast<std::size_t>(n) % kFresh); });
  const auto device = cuda::device_context(0);
  fmt::print(
      "host time on {}: forward() {:.2f} us on tensors seen before (at most {}), {:.2f} us on "
      "new ones (at most {})\n",
      (*device)->name, seen, kSeenBound, fresh, kNewBound);
  return seen <= kSeenBound && fresh <= kNewBound ? 0 : 1;
}
