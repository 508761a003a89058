// Products of bf16 pairs on AMX tiles: 16 rows of 16 pairs times 16 rows of 16 pairs, 16 x 16 f32
// sums, in 16 cycles. Four tiles of C stay in registers, so each step of 32 numbers in depth loads
// two tiles of A and two of B for four products, and the tile loads (8 cycles from L1) stay hidden.
//
// Operands lie as in PairOperands, padded with zeros to whole tiles in depth.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_AMX_INL_H_
#undef TILEWISE_CPU_SIMD_AMX_INL_H_
#else
#define TILEWISE_CPU_SIMD_AMX_INL_H_
#endif
// clang-format on

#include "cpu/simd/operands-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu::HWY_NAMESPACE {

#if TILEWISE_BF16_DOT

// The instructions, one function each. A tile is 16 rows of 64 bytes.
struct HardwareTiles {
  // Every thread configures its tiles and gives them back: what is in them must be saved whenever
  // the thread is interrupted.
  HardwareTiles() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static constexpr Config kConfig;
    asm volatile("ldtilecfg %0" ::"m"(kConfig));
  }
  ~HardwareTiles() { asm volatile("tilerelease"); }
  HardwareTiles(const HardwareTiles&) = delete;
  HardwareTiles& operator=(const HardwareTiles&) = delete;

  template <int kTile>
  static HWY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"n"(kTile));
  }
  template <int kTile>
  static HWY_INLINE void load(const float* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride * 4), "n"(kTile)
                 : "memory");
  }
  template <int kTile>
  static HWY_INLINE void store(float* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride * 4), "n"(kTile)
                 : "memory");
  }
  template <int kC, int kA, int kB>
  static HWY_INLINE void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(kC), "n"(kA), "n"(kB));
  }
};

// The same in plain code, so that the layouts can be tested on any machine with bf16 instructions.
struct EmulatedTiles {
  alignas(64) static inline thread_local float tiles[8][16][16];

  template <int kTile>
  static void zero() {
    std::memset(tiles[kTile], 0, sizeof tiles[kTile]);
  }
  template <int kTile>
  static void load(const float* from, int64_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(tiles[kTile][r], from + r * stride, 64);
  }
  template <int kTile>
  static void store(float* to, int64_t stride) {
    for (int r = 0; r < 16; ++r) std::memcpy(to + r * stride, tiles[kTile][r], 64);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    for (int r = 0; r < 16; ++r) {
      __m512 c = _mm512_load_ps(tiles[kC][r]);
      for (int k = 0; k < 16; ++k)
        c = _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_ps(tiles[kA][r][k]),
                             (__m512bh)_mm512_load_ps(tiles[kB][k]));
      _mm512_store_ps(tiles[kC][r], c);
    }
  }
};

template <class Tiles>
struct AmxOperands : PairOperands {
  using Session = Tiles;
  static constexpr int64_t kTile = 16;

  // C tiles 0 to 3, A tiles 4 and 5, B tiles 6 and 7; kRows and kCols count tiles, 1 or 2.
  template <int kRows, int kCols>
  static HWY_INLINE void block(Left a, Right b, Matrix c, int64_t depth, Store store) {
    const int64_t a_half = kTile * a.row_stride, c_half = kTile * c.stride;
    const bool add = store == Store::kAdd;
    add ? Tiles::template load<0>(c.data, c.stride) : Tiles::template zero<0>();
    if constexpr (kCols == 2)
      add ? Tiles::template load<1>(c.data + kTile, c.stride) : Tiles::template zero<1>();
    if constexpr (kRows == 2)
      add ? Tiles::template load<2>(c.data + c_half, c.stride) : Tiles::template zero<2>();
    if constexpr (kRows == 2 && kCols == 2)
      add ? Tiles::template load<3>(c.data + c_half + kTile, c.stride) : Tiles::template zero<3>();
    for (int64_t k = 0; k < depth; k += kTile) {
      Tiles::template load<6>(b.data + k * b.stride, b.stride);
      Tiles::template load<4>(a.data + k, a.row_stride);
      Tiles::template dot<0, 4, 6>();
      if constexpr (kRows == 2) {
        Tiles::template load<5>(a.data + a_half + k, a.row_stride);
        Tiles::template dot<2, 5, 6>();
      }
      if constexpr (kCols == 2) {
        Tiles::template load<7>(b.data + k * b.stride + kTile, b.stride);
        Tiles::template dot<1, 4, 7>();
      }
      if constexpr (kRows == 2 && kCols == 2) Tiles::template dot<3, 5, 7>();
    }
    Tiles::template store<0>(c.data, c.stride);
    if constexpr (kCols == 2) Tiles::template store<1>(c.data + kTile, c.stride);
    if constexpr (kRows == 2) Tiles::template store<2>(c.data + c_half, c.stride);
    if constexpr (kRows == 2 && kCols == 2)
      Tiles::template store<3>(c.data + c_half + kTile, c.stride);
  }

  template <int kRows>
  static HWY_INLINE void row_of_blocks(Left a, Right b, Matrix c, Extent e, Store store) {
    int64_t col = 0;
    for (; col + 2 * kTile <= e.cols; col += 2 * kTile)
      block<kRows, 2>(a, b.from_col(col), c.from_col(col), e.depth, store);
    if (col < e.cols) block<kRows, 1>(a, b.from_col(col), c.from_col(col), e.depth, store);
  }

  // A's depth must lie along its rows. Rows that don't fill a tile are left to vectors, so nothing
  // is written past the last.
  static HWY_INLINE void multiply(Left a, Right b, Matrix c, Extent e, Store store) {
    const Extent pairs = {e.rows, e.cols, ceil_div(e.depth, int64_t{2})};
    int64_t r = 0;
    for (; r + 2 * kTile <= e.rows; r += 2 * kTile)
      row_of_blocks<2>(a.from_row(r), b, c.from_row(r), pairs, store);
    if (r + kTile <= e.rows) {
      row_of_blocks<1>(a.from_row(r), b, c.from_row(r), pairs, store);
      r += kTile;
    }
    if (r < e.rows)
      PairOperands::multiply(a.from_row(r), b, c.from_row(r), {e.rows - r, e.cols, e.depth}, store);
  }

  static HWY_INLINE Left transposed(Matrix weights, Extent e, const Matrix (&room)[2]) {
    pair_rows(weights, e, room[0]);
    transpose(room[0], ceil_div(e.rows, int64_t{2}), e.cols, room[1]);
    return left(room[1]);
  }
};

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
