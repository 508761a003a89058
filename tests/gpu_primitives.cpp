// Runs every primitive's test kernel on a Hopper card: tilewise_primitives [WORD], those whose name
// holds WORD. Outputs are poisoned and guarded. Exits with 1 if one is wrong. Part of
// `./dev gpu-test`.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/runtime/tensor_map.h"
#include "primitives/primitive.h"
#include "tools/gpu_memory.h"

namespace {

using namespace tilewise;
using test::Primitive;
using test::Words;
using tools::DeviceBuffer;
using tools::pointer_to;

constexpr std::size_t kGuardBytes = 1024;  // on both sides of the output

// A step that went wrong ends the primitive's test with the step's words.
struct Failure {
  std::string words;
};
void must(const Status& s) {
  if (!s.ok()) throw Failure{s.message()};
}
template <class T>
T must(Expected<T> value) {
  if (!value.ok()) throw Failure{value.status().message()};
  return std::move(*value);
}

TensorMap map_of(const Primitive& p, void* memory) {
  Tensor t = make_tensor(memory, DType::kBF16, 1, p.matrix.rows, 1, p.matrix.columns);
  t.device = {Device::Kind::kCuda, 0};
  return must(cuda::make_tensor_map(*must(cuda::driver()), t, {p.matrix.box_rows}));
}

void launch(const test::NamedPrimitive& named, const Primitive& p, test::PrimitiveArguments a) {
  const cuda::DeviceContext& device = *must(cuda::hopper_device(0));
  const cuda::Kernel kernel = must(cuda::find_kernel(
      device, named.name, static_cast<int>(p.smem_bytes), [&] { return source_of(p); }));
  for (unsigned i = 0; i < p.launches; ++i)
    must(cuda::launch(device, kernel, {p.ctas, p.threads, p.smem_bytes, p.start}, nullptr, &a));
}

// Empty, or what is wrong.
std::string run(const test::NamedPrimitive& named) {
  const Primitive p = named.make();
  const std::size_t in_bytes = 4 * p.in.size(), out_bytes = 4 * p.out.size();
  const DeviceBuffer in = must(DeviceBuffer::create(in_bytes));
  const DeviceBuffer out = must(DeviceBuffer::create(out_bytes + 2 * kGuardBytes));
  must(in.copy_in(0, p.in.data(), in_bytes));
  test::PrimitiveArguments a;
  a.in = pointer_to(in.address());
  a.out = pointer_to(out.address() + kGuardBytes);
  if (p.matrix.rows > 0) {
    a.loads = map_of(p, pointer_to(in.address()));
    a.stores = map_of(p, a.out);
  }
  launch(named, p, a);
  Words got(p.out.size() + 2 * kGuardBytes / 4);
  must(out.copy_out(0, got.data(), out_bytes + 2 * kGuardBytes));
  const std::size_t guard = kGuardBytes / 4;
  for (std::size_t i = 0; i < guard; ++i)
    if (got[i] != test::kPoison || got[got.size() - 1 - i] != test::kPoison)
      return "wrote outside its output";
  return difference(p, Words(got.begin() + guard, got.end() - guard));
}

}  // namespace

int main(int count, char** words) {
  if (const Status s = tools::use_gpu(0); !s.ok()) {
    fmt::print(stderr, "primitives: {}\n", s.message());
    return 2;
  }
  int tried = 0, failed = 0;
  for (const test::NamedPrimitive& named : test::Registered::all()) {
    if (count > 1 && named.name.find(words[1]) == std::string::npos) continue;
    fmt::print("{}: ", named.name);  // before it runs: one that hangs has said its name
    std::fflush(stdout);
    std::string wrong;
    try {
      wrong = run(named);
    } catch (const Failure& failure) {
      wrong = failure.words;
    }
    fmt::print("{}\n", wrong.empty() ? "ok" : wrong);
    ++tried;
    failed += !wrong.empty();
  }
  fmt::print("primitives: {} of {} as they should be\n", tried - failed, tried);
  return failed || tried == 0;
}
