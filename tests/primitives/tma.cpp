// ptx/tma.h and tile/swizzled_tile.h: boxes of a matrix, runs of bytes, sums.
#include "core/half.h"
#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

constexpr int kRows = 100, kColumns = 72, kBoxRows = 64;  // boxes of 64 x 64 overhang on both sides

std::uint32_t element(int row, int column) {
  return static_cast<std::uint32_t>(1 + row * kColumns + column);
}
std::uint32_t pair(int row, int column) {
  return row < kRows && column < kColumns ? element(row, column) | element(row, column + 1) << 16
                                          : 0;
}

// The lower box row, both panels: read back by hand, with zeros outside; then stored, and only the
// rows and columns that exist are written.
const Registered kBoxes("TMA boxes, tensor maps, swizzle", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/mbarrier.h", "cuda/device/ptx/shared.h", "cuda/device/ptx/sync.h",
               "cuda/device/ptx/tma.h", "cuda/device/tile/swizzled_tile.h"};
  p.matrix = {kRows, kColumns, kBoxRows};
  p.threads = 128;
  p.smem_bytes = 1024 + 2 * 64 * 128;
  p.body = R"cuda(
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(s_memory);
  using Tile = tile::SwizzledTile<64, 72>;
  static_assert(Tile::kPanels == 2 && Tile::kBytes == 2 * Tile::kPanelBytes);
  const Tile tile{ptx::shared_address(s_memory) + 1024};
  if (thread == 0) {
    ptx::tma_prefetch_map(&a.loads);
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_bytes(barrier, Tile::kBytes);
    ptx::tma_load_4d({&a.loads, barrier, ptx::l2_evict_first()}, tile.s_address, {0, 64, 0, 0});
    ptx::tma_load_4d({&a.loads, barrier, ptx::l2_evict_last()},
                     tile.s_address + Tile::kPanelBytes, {64, 64, 0, 0});
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  uint32_t* const g_read = a.out + 100 * 72 / 2;
  for (int i = thread; i < 64 * 16; i += 128) {
    uint32_t r[4];
    ptx::load_shared(r, tile.chunk(i / 16, i % 16 * 8));
    for (int w = 0; w < 4; ++w) g_read[4 * i + w] = r[w];
  }
  ptx::fence_async_shared();
  __syncthreads();
  if (thread == 0) {
    ptx::tma_store_4d(&a.stores, tile.s_address, {0, 64, 0, 0});
    ptx::tma_store_4d(&a.stores, tile.s_address + Tile::kPanelBytes, {64, 64, 0, 0});
    ptx::tma_commit_group();
    ptx::tma_wait_group<0>();
  })cuda";
  for (int row = 0; row < kRows; ++row)
    for (int c = 0; c < kColumns; c += 2) {
      p.in.push_back(pair(row, c));
      p.out.push_back(row < kBoxRows ? kPoison : pair(row, c));
    }
  for (int row = 64; row < 128; ++row)
    for (int c = 0; c < 128; c += 2) p.out.push_back(pair(row, c));
  return p;
});

// chunk() and clear_rows() against the permutation as the PTX ISA words it: address bits 4 to 6
// are xored with bits 7 to 9.
const Registered kSwizzle("chunks of a swizzled tile", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/shared.h", "cuda/device/tile/swizzled_tile.h"};
  p.threads = 128;
  p.smem_bytes = 2 * 40 * 128;
  p.body = R"cuda(
  const tile::SwizzledTile<40, 128> tile{ptx::shared_address(s_memory)};
  for (uint32_t i = thread; i < 40 * 16; i += 128) {
    const uint32_t r[4] = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
    ptx::store_shared(tile.chunk(i / 16, i % 16 * 8), r);
  }
  __syncthreads();
  tile.clear_rows(27, thread, 128);
  __syncthreads();
  for (int i = thread; i < 40 * 64; i += 128)
    a.out[i] = reinterpret_cast<uint32_t*>(s_memory)[i];)cuda";
  for (std::uint32_t at = 0; at < 2 * 40 * 128; at += 4) {
    const std::uint32_t plain = at ^ (at >> 7 & 7) << 4;  // where it would lie without a swizzle
    const std::uint32_t row = plain / 128 % 40, word = plain / (40 * 128) * 32 + plain % 128 / 4;
    p.out.push_back(row < 27 ? row * 64 + word : 0);
  }
  return p;
});

// What threads wrote to global memory comes in as bytes, goes out as bytes, and is added to.
const Registered kBytes("TMA runs of bytes, and sums", [] {
  Primitive p;
  p.headers = {"cuda/device/ptx/mbarrier.h", "cuda/device/ptx/sync.h", "cuda/device/ptx/tma.h"};
  p.threads = 256;
  p.smem_bytes = 2048;
  p.body = R"cuda(
  uint64_t* const barrier = reinterpret_cast<uint64_t*>(s_memory);
  const uint32_t s_numbers = ptx::shared_address(s_memory) + 1024;
  float* const s_mine = reinterpret_cast<float*>(s_memory + 1024) + thread;
  float* const g_numbers = reinterpret_cast<float*>(a.out);
  float* const g_copy = g_numbers + 256;
  g_numbers[thread] = 0.5f * thread;
  g_copy[256 + thread] = 100.0f;
  if (thread == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::fence_async_global();
  __syncthreads();
  if (thread == 0) {
    ptx::mbarrier_arrive_expect_bytes(barrier, 1024);
    ptx::tma_load_bytes(barrier, s_numbers, g_numbers, 1024);
  }
  ptx::mbarrier_wait(barrier, 0);
  *s_mine += 1;
  ptx::fence_async_shared();
  __syncthreads();
  if (thread == 0) {
    ptx::tma_store_bytes(g_copy, s_numbers, 1024);
    ptx::tma_commit_group();
    ptx::tma_reduce_add_f32(g_copy + 256, s_numbers, 1024);
    ptx::tma_commit_group();
    ptx::tma_wait_group<1>();
    ptx::tma_reduce_add_f32(g_copy + 256, s_numbers, 512);
    ptx::tma_commit_group();
    ptx::tma_wait_group_read<0>();
  }
  __syncthreads();
  *s_mine = -1;  // read already, so this is not what is added
  if (thread == 0) ptx::tma_wait_group<0>();)cuda";
  for (int part = 0; part < 3; ++part)
    for (int t = 0; t < 256; ++t) {
      const float x = 0.5f * static_cast<float>(t), y = x + 1;
      const float sum = 100 + y + (t < 128 ? y : 0);
      p.out.push_back(f32_to_bits(part == 0 ? x : part == 1 ? y : sum));
    }
  return p;
});

}  // namespace
}  // namespace tilewise::test
