#include "primitives/primitive.h"

#include <fmt/format.h>

#include <cmath>

#include "core/half.h"

namespace tilewise::test {
namespace {

std::vector<NamedPrimitive>& registry() {
  static std::vector<NamedPrimitive> all;
  return all;
}

// PrimitiveArguments, as the device sees it.
constexpr const char* kPrelude = R"cuda(
namespace tilewise {
struct Arguments {
  const uint32_t* in;
  uint32_t* out;
  TensorMap loads, stores;
};
)cuda";

bool close(const Tolerance& tolerance, std::uint32_t got_bits, std::uint32_t want_bits) {
  if (got_bits == want_bits) return true;
  const double got = bits_to_f32(got_bits), want = bits_to_f32(want_bits);
  if (!std::isfinite(got) || !std::isfinite(want)) return false;
  return std::abs(got - want) <= tolerance.relative * std::abs(want) + tolerance.absolute;
}

}  // namespace

std::string source_of(const Primitive& p) {
  std::string out = "#include \"cuda/device/ptx/base.h\"\n#include \"cuda/device/tensor_map.h\"\n";
  for (const std::string& header : p.headers) out += fmt::format("#include \"{}\"\n", header);
  return out + kPrelude + p.declarations +
         fmt::format(
             "extern \"C\" __global__ void __launch_bounds__({}, 1)\n"
             "    tilewise_kernel(const __grid_constant__ Arguments a) {{\n"
             "  extern __shared__ __align__(1024) char s_memory[];\n"
             "  const int thread = threadIdx.x;\n",
             p.threads) +
         p.body + "\n}\n}  // namespace tilewise\n";
}

std::string difference(const Primitive& p, const Words& got) {
  if (got.size() != p.out.size())
    return fmt::format("{} words instead of {}", got.size(), p.out.size());
  const bool exact = p.tolerance.relative == 0 && p.tolerance.absolute == 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::uint32_t want = p.out[i];
    if (exact ? got[i] == want : close(p.tolerance, got[i], want)) continue;
    return fmt::format("word {} of {} is {:#x} ({}), not {:#x} ({})", i, got.size(), got[i],
                       bits_to_f32(got[i]), want, bits_to_f32(want));
  }
  return {};
}

Registered::Registered(const char* name, Primitive (*make)()) {
  registry().push_back({name, make});
}

const std::vector<NamedPrimitive>& Registered::all() {
  return registry();
}

}  // namespace tilewise::test
