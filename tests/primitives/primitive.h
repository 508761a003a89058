// A device primitive's own test: a kernel that does little else, what it is given, what must come
// out. Each is compiled in the test suite (test_primitives.cpp) and run on a Hopper card by
// `tilewise_primitives` (gpu_primitives.cpp).
//
// A new one is a row: `const Registered kName("name", [] { Primitive p; ...; return p; });` in any
// file of this folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device/tensor_map.h"
#include "cuda/runtime/launch.h"

namespace tilewise::test {

using Words = std::vector<std::uint32_t>;

// `in` and `out` as one bf16 matrix each, for TMA: a.loads and a.stores move boxes of 64 columns.
struct BoxedMatrix {
  int rows = 0, columns = 0, box_rows = 0;
};

// How far a result, read as float32, may be off.
struct Tolerance {
  double relative = 0, absolute = 0;
};

struct Primitive {
  std::vector<std::string> headers;  // as an #include spells them
  std::string declarations;          // device code in namespace tilewise, before the kernel
  // The kernel's body. It sees `a` (a.in, a.out: words; a.loads, a.stores: tensor maps), `thread`
  // and `s_memory`, dynamic shared memory at a multiple of 1024.
  std::string body;
  unsigned threads = 32, ctas = 1, smem_bytes = 0;
  unsigned launches = 1;  // one after the other, on the same memory
  cuda::Start start = cuda::Start::kAfterPrevious;
  Words in;
  Words out;  // expected; every word is 0xFFFFFFFF before
  BoxedMatrix matrix;
  Tolerance tolerance;  // without one: the same bits
};

// The kernel's parameter.
struct PrimitiveArguments {
  const void* in = nullptr;
  void* out = nullptr;
  TensorMap loads{}, stores{};
};

constexpr std::uint32_t kPoison = 0xFFFFFFFFu;

std::string source_of(const Primitive& p);

// Empty, or the first word of `got` that is not what it should be.
std::string difference(const Primitive& p, const Words& got);

struct NamedPrimitive {
  std::string name;
  Primitive (*make)();
};

class Registered {
 public:
  Registered(const char* name, Primitive (*make)());
  static const std::vector<NamedPrimitive>& all();
};

}  // namespace tilewise::test
