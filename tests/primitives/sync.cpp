// ptx/sync.h, ptx/shared.h and ptx/global.h: what lanes, warps, CTAs and launches tell each other.
#include "core/half.h"
#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

const Registered kLanes("votes and shuffles of a warp", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/sync.h"};
  p.threads = 64;
  p.body = R"cuda(
  uint32_t* const g_mine = a.out + 5 * ptx::thread_number();
  g_mine[0] = ptx::shuffle_xor(7 * thread, 5);
  g_mine[1] = ptx::warp_any(thread == 37);
  g_mine[2] = ptx::warp_uniform(3 * thread);
  g_mine[3] = __popc(__ballot_sync(ptx::kAllLanes, ptx::elect_one()));
  volatile uint32_t* const s_word = reinterpret_cast<uint32_t*>(s_memory) + thread / 32;
  if (thread % 32 == 31) *s_word = 100 + thread;
  ptx::warp_sync();
  g_mine[4] = *s_word;)cuda";
  p.smem_bytes = 8;
  for (std::uint32_t t = 0; t < p.threads; ++t)
    p.out.insert(p.out.end(), {7 * (t ^ 5), t / 32, t / 32 * 96, 1, 131 + t / 32 * 32});
  return p;
});

const Registered kMemory("loads and stores of 16 bytes", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/global.h", "cuda/device/ptx/shared.h"};
  p.smem_bytes = 32 * 32;
  p.body = R"cuda(
  uint32_t r[4], x[4];
  ptx::load_global(r, a.in + 4 * thread);
  const uint32_t s_mine = ptx::shared_address(s_memory) + 32 * thread;
  ptx::store_shared(s_mine, r);
  ptx::store_shared(s_mine + 16, 1.0f + thread, 2.0f, 3.0f, -4.0f);
  ptx::load_shared(r, s_mine);
  ptx::load_shared(x, s_mine + 16);
  ptx::store_global(a.out + 8 * thread, r);
  for (int i = 0; i < 4; ++i)
    ptx::store_global(reinterpret_cast<float*>(a.out) + 8 * thread + 4 + i, __uint_as_float(x[i]));
  )cuda";
  for (std::uint32_t t = 0; t < p.threads; ++t) {
    for (std::uint32_t i = 0; i < 4; ++i) p.in.push_back(1000 * t + i);
    p.out.insert(p.out.end(), p.in.end() - 4, p.in.end());
    for (const float x : {1.0f + static_cast<float>(t), 2.0f, 3.0f, -4.0f})
      p.out.push_back(f32_to_bits(x));
  }
  return p;
});

const Registered kLoadPair("ptx::load_shared_pair", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/shared.h"};
  p.smem_bytes = 32 * 8;
  p.body = R"cuda(
  uint32_t* const s_words = reinterpret_cast<uint32_t*>(s_memory);
  for (int i = 0; i < 2; ++i) s_words[2 * thread + i] = a.in[2 * thread + i];
  const float2 pair = ptx::load_shared_pair(ptx::shared_address(s_memory) + 8 * thread);
  a.out[2 * thread] = __float_as_uint(pair.x);
  a.out[2 * thread + 1] = __float_as_uint(pair.y);
  )cuda";
  for (std::uint32_t i = 0; i < 2 * p.threads; ++i)
    p.in.push_back(f32_to_bits(1.5f * static_cast<float>(i)));
  p.out = p.in;
  return p;
});

const Registered kNamedBarriers("named barriers", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/sync.h"};
  p.threads = 96;
  p.smem_bytes = 4 * 64;
  p.body = R"cuda(
  volatile uint32_t* const s_words = reinterpret_cast<uint32_t*>(s_memory);
  if (thread < 64) {  // two warps write and go on, each to a barrier of its own
    __nanosleep(20000);
    s_words[thread] = thread * thread;
    ptx::named_barrier_arrive(3 + thread / 32, 64);
  } else {
    ptx::named_barrier_sync(4, 64);
    a.out[thread - 32] = s_words[thread - 32];
    ptx::named_barrier_sync(3, 64);
    a.out[thread - 64] = s_words[thread - 64];
  })cuda";
  for (std::uint32_t t = 0; t < 64; ++t) p.out.push_back(t * t);
  return p;
});

// 200 numbers a thread stay in registers through all that the two warpgroups do to them.
const Registered kSetMaxNReg("setmaxnreg", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/sync.h"};
  p.threads = 384;
  p.body = R"cuda(
  if (thread < 128) {
    ptx::registers_decrease<24>();
    a.out[thread] = a.in[0];
    return;
  }
  ptx::registers_increase<240>();
  uint32_t x[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) x[i] = a.in[i % 4] * i + thread;
  for (uint32_t round = 0; round < a.in[1]; ++round) {
#pragma unroll
    for (int i = 0; i < 200; ++i) x[i] = 3 * x[i] + x[(i + 1) % 200];
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 200; ++i) sum = 5 * sum + x[i];
  a.out[thread] = sum;)cuda";
  p.in = {12, 9, 5, 3};
  for (std::uint32_t t = 0; t < p.threads; ++t) {
    std::uint32_t x[200], sum = 0;
    for (std::uint32_t i = 0; i < 200; ++i) x[i] = p.in[i % 4] * i + t;
    for (std::uint32_t round = 0; round < p.in[1]; ++round)
      for (std::uint32_t i = 0; i < 200; ++i) x[i] = 3 * x[i] + x[(i + 1) % 200];
    for (const std::uint32_t value : x) sum = 5 * sum + value;
    p.out.push_back(t < 128 ? p.in[0] : sum);
  }
  return p;
});

// Each CTA reads what the one before it wrote. The counter starts at the poison, -1.
const Registered kHandOver("add_release, load_acquire", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/global.h", "cuda/device/ptx/sync.h"};
  p.threads = 128;
  p.ctas = 16;
  p.start = cuda::Start::kAllAtOnce;
  p.body = R"cuda(
  const int cta = blockIdx.x;
  int32_t* const g_counter = reinterpret_cast<int32_t*>(a.out);
  if (thread == 0)
    while (ptx::load_acquire(g_counter) != cta - 1) {
    }
  ptx::named_barrier_sync(1, 128);
  uint32_t* const g_mine = a.out + 1 + thread;
  g_mine[128 * cta] = cta == 0 ? thread : 3 * g_mine[128 * (cta - 1)] + 1;
  ptx::named_barrier_sync(1, 128);
  if (thread == 0) ptx::add_release(g_counter, 1);)cuda";
  p.out = {p.ctas - 1};
  for (std::uint32_t i = 0; i < 128 * p.ctas; ++i)
    p.out.push_back(i < 128 ? i : 3 * p.out[1 + i - 128] + 1);
  return p;
});

// A launch starts beside the one before it, and still sees all that it wrote.
const Registered kDependentLaunch("programmatic dependent launch", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/sync.h"};
  p.threads = 256;
  p.launches = 12;
  p.start = cuda::Start::kOverlapsPrevious;
  p.body = R"cuda(
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t before = *reinterpret_cast<volatile uint32_t*>(a.out + thread);
  __nanosleep(5000);
  a.out[thread] = 3 * before + thread;)cuda";
  for (std::uint32_t t = 0; t < p.threads; ++t) {
    std::uint32_t x = kPoison;
    for (unsigned i = 0; i < p.launches; ++i) x = 3 * x + t;
    p.out.push_back(x);
  }
  return p;
});

}  // namespace
}  // namespace tilewise::test
