// ptx/wgmma.h and each generated shape: 64 x 128 by 128 x N in small whole numbers, so that the
// result is exact; A from shared memory and from registers, B with K and with N along its rows,
// both dtypes; the descriptors are tile/swizzled_tile.h's.
#include <fmt/format.h>

#include "core/half.h"
#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

constexpr int kM = 64, kK = 128;

int a_value(int m, int k) {
  return (3 * m + 5 * k) % 7 - 3;
}
int b_value(int k, int n) {
  return (11 * k + 2 * n) % 5 - 2;
}

// The same numbers are made on the device. N is the macro kN.
constexpr const char* kDeclarations = R"cuda(
constexpr int kM = 64, kK = 128;
using TileA = tile::SwizzledTile<kM, kK>;
using TileB = tile::SwizzledTile<kN, kK>;   // K along the rows
using TileBt = tile::SwizzledTile<kK, kN>;  // N along the rows

template <Element kElement>
TW_DEVICE void put(uint32_t s_chunk, const float (&x)[8]) {
  const uint32_t r[4] = {ptx::pack<kElement>(x[0], x[1]), ptx::pack<kElement>(x[2], x[3]),
                         ptx::pack<kElement>(x[4], x[5]), ptx::pack<kElement>(x[6], x[7])};
  ptx::store_shared(s_chunk, r);
}
TW_DEVICE float a_value(int m, int k) { return (3 * m + 5 * k) % 7 - 3; }
TW_DEVICE float b_value(int k, int n) { return (11 * k + 2 * n) % 5 - 2; }

struct Tiles {
  TileA a;
  TileB b;
  TileBt bt;
};

template <Element kElement>
TW_DEVICE void fill(const Tiles& t, int thread) {
  float x[8];
#pragma unroll 1
  for (int i = thread; i < kM * kK / 8; i += 128) {
    for (int j = 0; j < 8; ++j) x[j] = a_value(i / 16, i % 16 * 8 + j);
    put<kElement>(t.a.chunk(i / 16, i % 16 * 8), x);
  }
#pragma unroll 1
  for (int i = thread; i < kN * kK / 8; i += 128) {
    for (int j = 0; j < 8; ++j) x[j] = b_value(i % 16 * 8 + j, i / 16);
    put<kElement>(t.b.chunk(i / 16, i % 16 * 8), x);
    const int k = i / (kN / 8), n = i % (kN / 8) * 8;
    for (int j = 0; j < 8; ++j) x[j] = b_value(k, n + j);
    put<kElement>(t.bt.chunk(k, n), x);
  }
  ptx::fence_async_shared();
  __syncthreads();
}

// Where A comes from.
enum class From { kShared, kRegisters };

template <Element kElement, ptx::Major kMajor, From kFrom>
TW_DEVICE void product(const Tiles& t, int thread, uint32_t* g_out) {
  using Wgmma = ptx::Wgmma<kElement, kN>;
  const int row = thread / 32 * 16 + thread % 32 / 4, quad = thread % 4;
  float d[kN / 2];
  uint32_t a[kK / 16][4];
  for (int i = 0; i < kN / 2; ++i) d[i] = 1e30f;  // the first product throws it away
  if constexpr (kFrom == From::kRegisters) {
#pragma unroll
    for (int step = 0; step < kK / 16; ++step)
      ptx::ldmatrix_x4(a[step], t.a.chunk(thread / 32 * 16 + thread % 16,
                                          16 * step + thread % 32 / 16 * 8));
    ptx::pin_registers(a);
  }
  ptx::pin_registers(d);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    const auto to = step == 0 ? ptx::Accumulate::kZero : ptx::Accumulate::kKeep;
    const uint64_t b = kMajor == ptx::Major::kK
                           ? tile::step(t.b.k_major(0), TileB::k_step(16 * step))
                           : tile::step(t.bt.mn_major(), TileBt::row_step(16 * step));
    if constexpr (kFrom == From::kShared)
      Wgmma::template ss<kMajor>(d, tile::step(t.a.k_major(0), TileA::k_step(16 * step)), b, to);
    else
      Wgmma::template rs<kMajor>(d, a[step], b, to);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::pin_registers(d);
  for (int j = 0; j < kN / 8; ++j)
    for (int i = 0; i < 4; ++i)
      g_out[(row + i / 2 * 8) * kN + 8 * j + 2 * quad + i % 2] = __float_as_uint(d[4 * j + i]);
}

// A CTA for each of the four ways.
template <Element kElement>
TW_DEVICE void products(const Tiles& t, int thread, uint32_t* g_out) {
  using ptx::Major;
  fill<kElement>(t, thread);
  const int way = blockIdx.x % 4;
  if (way == 0) product<kElement, Major::kK, From::kShared>(t, thread, g_out);
  if (way == 1) product<kElement, Major::kMn, From::kShared>(t, thread, g_out);
  if (way == 2) product<kElement, Major::kK, From::kRegisters>(t, thread, g_out);
  if (way == 3) product<kElement, Major::kMn, From::kRegisters>(t, thread, g_out);
}
)cuda";

constexpr const char* kBody = R"cuda(
  const uint32_t s_a = ptx::shared_address(s_memory);
  const Tiles t{{s_a}, {s_a + TileA::kBytes}, {s_a + TileA::kBytes + TileB::kBytes}};
  uint32_t* const g_out = a.out + blockIdx.x * kM * kN;
  if (blockIdx.x < 4)
    products<Element::kBf16>(t, thread, g_out);
  else
    products<Element::kF16>(t, thread, g_out);)cuda";

template <int kN>
Primitive shape() {
  Primitive p;
  p.headers = {fmt::format("cuda/device/ptx/wgmma/n{}.h", kN),
               "cuda/device/ptx/math.h",
               "cuda/device/ptx/matrix.h",
               "cuda/device/ptx/shared.h",
               "cuda/device/ptx/sync.h",
               "cuda/device/tile/swizzled_tile.h"};
  p.declarations = fmt::format("constexpr int kN = {};", kN) + kDeclarations;
  p.body = kBody;
  p.threads = 128;
  p.ctas = 8;
  const int panels = (kN + 63) / 64;
  p.smem_bytes = static_cast<unsigned>(2 * kM * kK + 2 * kN * kK + panels * kK * 128);
  Words once;
  for (int m = 0; m < kM; ++m)
    for (int n = 0; n < kN; ++n) {
      int sum = 0;
      for (int k = 0; k < kK; ++k) sum += a_value(m, k) * b_value(k, n);
      once.push_back(f32_to_bits(static_cast<float>(sum)));
    }
  for (unsigned i = 0; i < p.ctas; ++i) p.out.insert(p.out.end(), once.begin(), once.end());
  return p;
}

const Registered kShapes[] = {
    {"wgmma n16", shape<16>},   {"wgmma n32", shape<32>},   {"wgmma n48", shape<48>},
    {"wgmma n64", shape<64>},   {"wgmma n80", shape<80>},   {"wgmma n96", shape<96>},
    {"wgmma n112", shape<112>}, {"wgmma n128", shape<128>}, {"wgmma n144", shape<144>},
    {"wgmma n160", shape<160>}, {"wgmma n176", shape<176>}, {"wgmma n192", shape<192>},
    {"wgmma n208", shape<208>}, {"wgmma n224", shape<224>}, {"wgmma n240", shape<240>},
    {"wgmma n256", shape<256>}};

// tile/column_numbers.h: rows' slopes, of which three k hold a part each, times the columns.
const Registered kColumnNumbers("column numbers", [] {
  constexpr int kN = 80;
  Primitive p;
  p.headers = {fmt::format("cuda/device/ptx/wgmma/n{}.h", kN), "cuda/device/ptx/sync.h",
               "cuda/device/tile/column_numbers.h"};
  p.body = R"cuda(
  constexpr int kN = 80;
  const tile::ColumnNumbers<kN> numbers{ptx::shared_address(s_memory)};
  numbers.write(thread, 128);
  ptx::fence_async_shared();
  __syncthreads();
  const int row = thread / 32 * 16 + thread % 32 / 4, quad = thread % 4;
  // k = 0, 1 and 2 hold row + 1, 0.25 and 256; what the second 8 k see is multiplied with 0.
  uint32_t slopes[4] = {};
  for (int r = 0; r < 2; ++r) {
    const float whole = row + 8 * r + 1;
    if (quad == 0) slopes[r] = ptx::pack<Element::kBf16>(whole, 0.25f);
    if (quad == 1) slopes[r] = ptx::pack<Element::kBf16>(256.0f, 0.0f);
  }
  float d[kN / 2];
  for (float& x : d) x = 1.0f;
  ptx::pin_registers(d);
  ptx::wgmma_fence();
  ptx::Wgmma<Element::kBf16, kN>::rs<ptx::Major::kK>(d, slopes, numbers.descriptor(),
                                                     ptx::Accumulate::kKeep);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::pin_registers(d);
  for (int j = 0; j < kN / 8; ++j)
    for (int i = 0; i < 4; ++i)
      a.out[(row + i / 2 * 8) * kN + 8 * j + 2 * quad + i % 2] = __float_as_uint(d[4 * j + i]);)cuda";
  p.threads = 128;
  p.smem_bytes = 2 * kN * 16;  // memcheck takes the second 8 k to lie behind the first
  for (int m = 0; m < kM; ++m)
    for (int n = 0; n < kN; ++n)
      p.out.push_back(
          f32_to_bits(1.0f + (static_cast<float>(m) + 257.25f) * static_cast<float>(n)));
  return p;
});

}  // namespace
}  // namespace tilewise::test
