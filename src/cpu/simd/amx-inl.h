// Products of bf16 pairs on AMX tiles: 16 rows of 16 pairs times 16 rows of 16 pairs, 16 x 16 f32
// sums, in 16 cycles. Four tiles of C stay in registers, so each step of 32 numbers in depth loads
// two tiles of A and two of B for four products, and the tile loads (8 cycles from L1) stay hidden.
//
// A product is an object that is advanced step by step, so that vector code can run beside it: the
// tile unit works on a step's products while the core issues what follows them.
//
// Operands lie as in PairOperands (bf16) or PartOperands (f16, f32), padded with zeros to whole
// tiles in depth. A is read in blocks of 32 rows and B in blocks of 32 columns, whatever lies past
// the last; C is written only where it is.

// clang-format off
#if defined(TILEWISE_CPU_SIMD_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)  // guard per target
#ifdef TILEWISE_CPU_SIMD_AMX_INL_H_
#undef TILEWISE_CPU_SIMD_AMX_INL_H_
#else
#define TILEWISE_CPU_SIMD_AMX_INL_H_
#endif
// clang-format on

#include "cpu/simd/parts-inl.h"

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

// Which parts of A and B meet, small products first, so that they are not lost in large sums. Of
// two parts all four: the scores of f16 are then exact to f32's digits, as the LSE's bound wants.
template <int kParts>
struct PartPairs {
  static constexpr int kMostSum = kParts == 2 ? 2 : kParts - 1;
  static constexpr int kCount = kParts == 2 ? 4 : kParts * (kParts + 1) / 2;
  struct Table {
    int8_t a[kCount], b[kCount];
  };
  static constexpr Table kTable = [] {
    Table t{};
    int i = 0;
    for (int sum = kMostSum; sum >= 0; --sum)
      for (int first = min_of(sum, kParts - 1); first >= 0 && sum - first < kParts; --first, ++i)
        t.a[i] = static_cast<int8_t>(first), t.b[i] = static_cast<int8_t>(sum - first);
    return t;
  }();
};

// Up to 32 rows of C, a block of 32 columns after another. C tiles 0 to 3, A 4 and 5, B 6 and 7.
template <class Tiles, int kParts>
class TileProduct {
 public:
  TileProduct() = default;  // nothing to do
  TileProduct(Left a, Right b, Matrix c, Extent e, Store store)
      : a_(a),
        b_(b),
        c_(c),
        rows_(e.rows),
        cols_(e.cols),
        depth_(ceil_div(e.depth, int64_t{2})),
        first_pair_(store == Store::kAdd && kParts == 2 ? 1 : 0),
        pair_(first_pair_),
        add_(store == Store::kAdd) {}

  bool done() const { return cols_ <= 0; }
  // Of 4 tile products each.
  int64_t steps() const {
    return ceil_div(cols_, 2 * kTile) * ceil_div(depth_, kTile) * (Pairs::kCount - first_pair_);
  }

  HWY_INLINE void step() {
    if (k_ == 0 && pair_ == first_pair_) begin_block();
    const float* const a = a_.data + Pairs::kTable.a[pair_] * a_.part + k_;
    const float* const b = b_.data + Pairs::kTable.b[pair_] * b_.part + k_ * b_.stride;
    Tiles::template load<6>(b, b_.stride);
    Tiles::template load<4>(a, a_.row_stride);
    Tiles::template dot<0, 4, 6>();
    Tiles::template load<5>(a + kTile * a_.row_stride, a_.row_stride);
    Tiles::template dot<2, 5, 6>();
    Tiles::template load<7>(b + kTile, b_.stride);
    Tiles::template dot<1, 4, 7>();
    Tiles::template dot<3, 5, 7>();
    if ((k_ += kTile) < depth_) return;
    k_ = 0;
    if (++pair_ < Pairs::kCount) return;
    pair_ = first_pair_;
    end_block();
  }
  HWY_INLINE void finish() {
    while (!done()) step();
  }

 private:
  using Pairs = PartPairs<kParts>;
  static constexpr int64_t kTile = 16;

  bool whole() const { return rows_ == 2 * kTile && cols_ >= 2 * kTile; }
  // A running sum passes through the tiles; long chains of split products get their own, since
  // each addition to a large sum rounds it.
  bool load_c() const { return add_ && kParts == 1 && whole(); }

  HWY_INLINE void begin_block() {
    if (load_c()) {
      move_c([](auto tile, float* at,
                int64_t stride) { Tiles::template load<decltype(tile)::value>(at, stride); },
             c_);
    } else {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
  }
  HWY_INLINE void end_block() {
    const auto store = [](auto tile, float* at, int64_t stride) {
      Tiles::template store<decltype(tile)::value>(at, stride);
    };
    if (load_c() || (!add_ && whole())) {
      move_c(store, c_);
    } else {
      alignas(64) float block[4 * kTile * kTile];
      const Matrix room = {block, 2 * kTile};
      move_c(store, room);
      put(room);
    }
    c_ = c_.from_col(2 * kTile);
    b_ = b_.from_col(2 * kTile);
    cols_ -= 2 * kTile;
  }
  template <class Move>
  static HWY_INLINE void move_c(Move&& move, Matrix c) {
    move(std::integral_constant<int, 0>(), c.data, c.stride);
    move(std::integral_constant<int, 1>(), c.data + kTile, c.stride);
    move(std::integral_constant<int, 2>(), c.row(kTile), c.stride);
    move(std::integral_constant<int, 3>(), c.row(kTile) + kTile, c.stride);
  }
  HWY_INLINE void put(Matrix block) const {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t j = 0; j < min_of(cols_, 2 * kTile); j += kTile) {
        const __m512 x = _mm512_load_ps(block.row(r) + j);
        float* const to = c_.row(r) + j;
        _mm512_store_ps(to, add_ ? _mm512_add_ps(_mm512_load_ps(to), x) : x);
      }
  }

  Left a_{};
  Right b_{};
  Matrix c_{};
  int64_t rows_ = 0, cols_ = 0;  // still to do
  int64_t depth_ = 0;            // pairs
  int64_t k_ = 0;
  int first_pair_ = 0;  // weights of two parts, 16 bits, can do without the smallest
  int pair_ = 0;
  bool add_ = false;
};

template <class Tiles, int kPartCount>
struct AmxOperands : std::conditional_t<kPartCount == 1, PairOperands, PartOperands<kPartCount>> {
  using Session = Tiles;
  using Product = TileProduct<Tiles, kPartCount>;

  // A's depth must lie along its rows.
  static HWY_INLINE void multiply(Left a, Right b, Matrix c, Extent e, Store store) {
    constexpr int64_t kRows = 32;
    for (int64_t r = 0; r < e.rows; r += kRows)
      Product(a.from_row(r), b, c.from_row(r), {min_of(kRows, e.rows - r), e.cols, e.depth}, store)
          .finish();
  }

  static HWY_INLINE Left transposed(Matrix weights, Extent e, const Matrix (&room)[2]) {
    PairOperands::pair_rows(weights, e, room[0]);
    transpose(room[0], ceil_div(e.rows, int64_t{2}), e.cols, room[1]);
    return left(room[1]);
  }
};

#endif  // TILEWISE_BF16_DOT

}  // namespace tilewise::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
