// A tile of 16-bit numbers in shared memory as TMA writes it with the 128-byte swizzle, and the
// WGMMA descriptors that read it back.
//
// The columns are cut into panels of 64 (128 bytes, the swizzle's width); a panel is kRows rows of
// 128 bytes, and inside 8 rows (1024 bytes, the alignment everything here needs) the 16-byte chunk
// c of row r lies at chunk c ^ (r % 8). TMA and WGMMA apply that permutation by themselves, from
// the address bits, so only threads that touch a tile by hand (chunk) have to care.
//
// Descriptor (PTX ISA, "matrix descriptor"), in units of 16 bytes: bits 0-13 start address, 16-29
// leading offset, 32-45 stride offset, 62-63 the swizzle (1: 128 bytes). The stride offset steps
// 8 rows; the leading offset steps a panel and matters only where N (not K) runs along the row.
#pragma once

#include "cuda/device/ptx/base.h"

namespace tilewise::tile {

inline constexpr int kPanelColumns = 64;
inline constexpr int kRowBytes = 128;

// A descriptor moved by `units`, k_step() or row_step(). Addresses never carry out of the low half;
// the compiler can't know, and would add 64 bits between two products.
TW_DEVICE uint64_t step(uint64_t descriptor, uint64_t units) {
  uint64_t moved;
  asm("{\n.reg .b32 low, high;\n"
      "mov.b64 {low, high}, %1;\n"
      "add.u32 low, low, %2;\n"
      "mov.b64 %0, {low, high};\n}"
      : "=l"(moved)
      : "l"(descriptor), "r"(static_cast<uint32_t>(units)));
  return moved;
}

template <int kRows, int kColumns>
struct SwizzledTile {
  static_assert(kRows % 8 == 0, "the swizzle repeats every 8 rows");
  static constexpr int kRowCount = kRows;
  static constexpr int kPanels = (kColumns + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  uint32_t s_address;  // 1024-byte aligned

  // K runs along the row (Q as A, K as B of Q K^T): 16 columns, the rows from `row` on (a multiple
  // of 8). k_step(column) is what to add for the columns from `column` on.
  TW_DEVICE uint64_t k_major(int row) const { return descriptor(row * kRowBytes, 1); }
  TW_DEVICE static constexpr uint64_t k_step(int column) {
    return (column / kPanelColumns * kPanelBytes + column % kPanelColumns * 2) / 16;
  }

  // N runs along the row (V as B of P V): 16 rows, the columns from a panel on. row_step(row) is
  // what to add for the rows from `row` on.
  TW_DEVICE uint64_t mn_major(int panel = 0) const {
    return descriptor(panel * kPanelBytes, kPanelBytes / 16);
  }
  TW_DEVICE static constexpr uint64_t row_step(int row) { return row * kRowBytes / 16; }

  // The address of the 16 bytes that hold columns column ... column + 7 of a row.
  TW_DEVICE uint32_t chunk(int row, int column) const {
    return s_address + column / kPanelColumns * kPanelBytes + row * kRowBytes +
           ((column % kPanelColumns / 8) ^ (row % 8)) * 16;
  }

  // Thread `thread` of `threads` writes zeros to its share of the rows from `row` on.
  TW_DEVICE void clear_rows(int row, int thread, int threads) const {
    const int chunks = (kRows - row) * (kRowBytes / 16);
    for (int i = thread; i < kPanels * chunks; i += threads) {
      const uint32_t at = s_address + i / chunks * kPanelBytes + row * kRowBytes + i % chunks * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
  }

 private:
  TW_DEVICE uint64_t descriptor(int offset, uint64_t leading) const {
    constexpr uint64_t kStride = uint64_t{8 * kRowBytes / 16} << 32;
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    return kSwizzle128 | kStride | leading << 16 | (s_address + offset) >> 4;
  }
};

}  // namespace tilewise::tile
