// core/philox.h, compiled for the device: the host's bits (tests/test_philox.cpp holds those to the
// paper's).
#include "core/philox.h"

#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

constexpr std::uint32_t kThreads = 256;

const Registered kPhilox("philox on the device", [] {
  Primitive p;
  p.headers = {"core/philox.h"};
  p.body = R"cuda(
  const PhiloxKey key = dropout_key(a.in[0] | uint64_t{a.in[1]} << 32, a.in[2]);
  const uint32_t t = thread, i = 37 * t + 5, j = 911 * t;
  const Philox4 call = dropout_block(key, t % 3, t / 3, i / 16, j / 16, t % 32);
  for (int w = 0; w < 4; ++w) a.out[6 * t + w] = call.w[w];
  a.out[6 * t + 4] = dropout_bits(call, i, j);
  a.out[6 * t + 5] = dropout_keep({key, dropout_threshold(0.3f)}, t % 3, t / 3, i, j);)cuda";
  p.threads = kThreads;
  p.in = {0xDEADBEEF, 0x12345678, 77};
  const PhiloxKey key = dropout_key(0x12345678DEADBEEFu, 77);
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    const std::uint32_t i = 37 * t + 5, j = 911 * t;
    const Philox4 call = dropout_block(key, t % 3, t / 3, i / 16, j / 16, t % 32);
    p.out.insert(p.out.end(), call.w, call.w + 4);
    p.out.push_back(dropout_bits(call, i, j));
    p.out.push_back(dropout_keep({key, dropout_threshold(0.3f)}, t % 3, t / 3, i, j));
  }
  return p;
});

}  // namespace
}  // namespace tilewise::test
