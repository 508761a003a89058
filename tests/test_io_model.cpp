// The IO model held against a count: the walks that the kernels run, over a fast memory of M bytes
// that refuses a byte more, must move what the closed forms predict; and what they compute
// meanwhile must be attention. Then the laws of Dao et al. 2022, section 3.2.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "plan/io_model.h"
#include "reference/reference.h"
#include "support/io_backward.h"
#include "support/io_forward.h"

namespace tilewise {
namespace {

using testing::KvHead;
using testing::TwoLevelMemory;
using testing::Values;

enum class Order { kStandard, kFa1, kFa2 };
// The promise is 5%; the closed forms count every edge, so they are held to rounding.
constexpr double kAgreement = 1e-9;

constexpr Order kOrders[] = {Order::kStandard, Order::kFa1, Order::kFa2};

const char* name_of(Order order) {
  return order == Order::kStandard ? "standard" : order == Order::kFa1 ? "fa1" : "fa2";
}

double predicted(const IoModel& io, Order order) {
  return order == Order::kStandard ? io.standard_bytes
         : order == Order::kFa1    ? io.fa1_bytes
                                   : io.fa2_bytes;
}

struct Case {
  Problem problem;
  double fast_bytes;
  Pass pass;
  Order order;
};

TileGrid queries_outside(const BandMask& mask, TileSize tile) {
  return {mask, tile.outer, tile.inner};
}
TileGrid keys_outside(const BandMask& mask, TileSize tile) {
  return {mask, tile.inner, tile.outer};
}

// Bytes moved by one kv head and the query heads that share it.
double count_head(const Case& c, KvHead& kv, Values values) {
  const IoTiles tiles = io_tiles(c.problem, c.fast_bytes, c.pass);
  TwoLevelMemory fast(c.fast_bytes, values);
  const bool forward = c.pass == Pass::kForward;
  if (c.order == Order::kFa2) {
    (forward ? testing::run_fa2 : testing::run_backward_fa2)(fast, kv,
                                                             queries_outside(kv.mask, tiles.fa2));
  } else if (c.order == Order::kFa1) {
    (forward ? testing::run_fa1 : testing::run_backward_fa1)(fast, kv,
                                                             keys_outside(kv.mask, tiles.fa1));
  } else if (forward) {
    testing::run_standard(fast, kv, queries_outside(kv.mask, tiles.standard));
  } else {
    testing::run_backward_standard(fast, kv, queries_outside(kv.mask, tiles.standard),
                                   queries_outside(transposed(kv.mask), tiles.standard_keys));
  }
  return fast.moved();
}

double count(const Case& c) {
  std::mt19937 rng(1);
  KvHead kv = testing::make_kv_head(c.problem, Values::kSkip, rng);
  const double heads = static_cast<double>(c.problem.batch * c.problem.heads_kv);
  return heads * count_head(c, kv, Values::kSkip);
}

Problem make_problem(std::int64_t seq_q, std::int64_t seq_kv, std::int64_t d, std::int64_t dv) {
  Problem p;
  p.seq_q = seq_q;
  p.seq_kv = seq_kv;
  p.head_dim = d;
  p.head_dim_v = dv;
  return p;
}

// Full, causal with both alignments, windows.
const Mask kMasks[] = {{},
                       {.causal = true},
                       {.causal = true, .align = Align::kTopLeft},
                       {.left = 100, .right = 0},
                       {.left = 37, .right = 200, .align = Align::kTopLeft}};

std::string describe(const Case& c) {
  const Problem& p = c.problem;
  return std::string(name_of(c.order)) + (c.pass == Pass::kForward ? " forward" : " backward") +
         ", Sq " + std::to_string(p.seq_q) + ", Sk " + std::to_string(p.seq_kv) + ", D " +
         std::to_string(p.head_dim) + ", Dv " + std::to_string(p.head_dim_v) + ", M " +
         std::to_string(c.fast_bytes) + ", causal " + std::to_string(p.mask.causal) + ", window " +
         std::to_string(p.mask.left) + "," + std::to_string(p.mask.right) + ", dtype " +
         name_of(p.dtype) + ", bias " + std::to_string(p.bias.present);
}

void expect_predicted(const Problem& problem, double fast_bytes) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const IoModel io = io_model(problem, fast_bytes, pass);
    for (const Order order : kOrders) {
      const Case c{problem, fast_bytes, pass, order};
      const double counted = count(c);
      EXPECT_NEAR(predicted(io, order) / counted, 1, kAgreement)
          << describe(c) << ": counted " << counted;
    }
  }
}

TEST(IoModel, CountedTrafficIsAsPredicted) {
  const std::int64_t lengths[][2] = {
      {512, 512}, {1000, 1000}, {2048, 2048}, {300, 1500}, {1500, 300}};
  for (const auto& [seq_q, seq_kv] : lengths)
    for (const std::int64_t d : {16, 64, 128})
      for (const double fast_bytes : {16e3, 64e3, 256e3, 1e6})
        for (const Mask& mask : kMasks) {
          Problem p = make_problem(seq_q, seq_kv, d, d);
          p.mask = mask;
          expect_predicted(p, fast_bytes);
        }
}

TEST(IoModel, CountedTrafficIsAsPredictedForEveryFeature) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const std::int64_t group : {1, 3}) {
      Problem p = make_problem(700, 900, 96, 40);
      p.dtype = dtype;
      p.out_dtype = DType::kF32;
      p.batch = 2;
      p.heads_kv = 2;
      p.heads_q = 2 * group;
      p.mask.causal = true;
      p.bias.present = true;
      for (const double fast_bytes : {32e3, 200e3}) expect_predicted(p, fast_bytes);
    }
}

TEST(IoModel, TilesAreTheLargestThatFit) {
  const Problem p = make_problem(4096, 4096, 64, 64);
  std::mt19937 rng(1);
  KvHead kv = testing::make_kv_head(p, Values::kSkip, rng);
  for (const double fast_bytes : {2e4, 3e5}) {
    const IoTiles tiles = io_tiles(p, fast_bytes);
    const auto run = [&](int64_t more) {
      TwoLevelMemory fast(fast_bytes, Values::kSkip);
      testing::run_fa2(fast, kv,
                       queries_outside(kv.mask, {tiles.fa2.outer + more, tiles.fa2.inner}));
      testing::run_fa1(fast, kv, keys_outside(kv.mask, {tiles.fa1.outer, tiles.fa1.inner + more}));
      return fast.peak();
    };
    EXPECT_GT(run(0), 0.95 * fast_bytes);
    EXPECT_NONFATAL_FAILURE(run(8), "bytes resident in a fast memory of");
  }
}

TEST(IoModel, LeastBytesIsALowerBound) {
  for (const double fast_bytes : {1e4, 1e5, 1e6, 1e9}) {
    const Problem p = make_problem(1024, 1024, 64, 64);
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const IoModel io = io_model(p, fast_bytes, pass);
      for (const Order order : kOrders) EXPECT_GE(predicted(io, order), io.least_bytes);
    }
  }
  // 1024 rows of Q, K, V and O of 64 floats, and LSE.
  EXPECT_EQ(io_model(make_problem(1024, 1024, 64, 64), 1e9).least_bytes, 1024.0 * (4 * 256 + 4));
  // Everything resident: the queries-outside order moves exactly that.
  EXPECT_EQ(io_model(make_problem(1024, 1024, 64, 64), 1e9).fa2_bytes, 1024.0 * (4 * 256 + 4));
}

TEST(IoModel, PackedSequencesCountAsTheirMeanLength) {
  Problem dense = make_problem(1024, 1024, 64, 64);
  dense.batch = 4;
  Problem packed = dense;
  packed.seq_q = packed.seq_kv = 3000;  // the longest may be
  packed.varlen = {.cu_seqlens_q = true, .cu_seqlens_kv = true, .total_q = 4096, .total_kv = 4096};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const IoModel a = io_model(dense, 1e5, pass), b = io_model(packed, 1e5, pass);
    EXPECT_EQ(a.least_bytes, b.least_bytes);
    for (const Order order : kOrders) EXPECT_EQ(predicted(a, order), predicted(b, order));
  }
}

TEST(IoModel, NominalFlopsAreThoseOfThePapers) {
  Problem p = make_problem(1000, 1000, 64, 64);
  p.batch = 2;
  p.heads_q = 3;
  EXPECT_EQ(nominal_flops(p), 4.0 * 2 * 3 * 1000 * 1000 * 64);
  EXPECT_EQ(nominal_flops(p, Pass::kBackward), 2.5 * nominal_flops(p));
  p.mask.causal = true;
  EXPECT_EQ(nominal_flops(p), 2.0 * 2 * 3 * 1000 * 1000 * 64);
  p.mask.left = 9;  // ten keys a row, fewer in the first nine
  EXPECT_EQ(nominal_flops(p), 4.0 * 2 * 3 * (1000 * 10 - 45) * 64);
}

TEST(IoModel, EmptyProblemsMoveNothing) {
  Problem p = make_problem(0, 0, 64, 64);
  EXPECT_EQ(io_model(p, 1e6).fa2_bytes, 0);
  EXPECT_EQ(io_model(p, 1e6, Pass::kBackward).standard_bytes, 0);
  p = make_problem(128, 128, 64, 64);
  p.batch = 0;
  EXPECT_EQ(io_model(p, 1e6).fa1_bytes, 0);
}

// Largest |a - b|; infinities must agree in place.
double distance(const testing::SlowMatrix& a, const std::vector<double>& b, std::int64_t head,
                std::int64_t heads) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j) {
      const double x = a.at(i, j), y = b[(i * heads + head) * a.cols + j];
      if (std::isinf(x) && x == y) continue;
      worst = std::isfinite(x - y) ? std::fmax(worst, std::fabs(x - y)) : INFINITY;
    }
  return worst;
}

// The heads' matrices interleaved to (1, S, H, D), as Inputs wants them.
std::vector<float> interleave(const std::vector<const testing::SlowMatrix*>& heads) {
  const auto n = static_cast<std::int64_t>(heads.size());
  const std::int64_t rows = heads[0]->rows, cols = heads[0]->cols;
  std::vector<float> all(rows * n * cols);
  for (std::int64_t h = 0; h < n; ++h)
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) all[(i * n + h) * cols + j] = heads[h]->at(i, j);
  return all;
}

// What was counted is attention: the same walks with values give O, LSE, dQ, dK and dV.
void expect_attention(const Problem& p, KvHead kv, Order order, double fast_bytes) {
  const std::int64_t heads = p.heads_q;
  std::vector<const testing::SlowMatrix*> q_heads, do_heads;
  for (const testing::QueryHead& h : kv.heads) {
    q_heads.push_back(&h.q);
    do_heads.push_back(&h.d_o);
  }
  std::vector<float> q = interleave(q_heads), d_o = interleave(do_heads);
  Inputs in;
  in.q = make_tensor(q.data(), DType::kF32, 1, p.seq_q, heads, p.head_dim);
  in.k = make_tensor(kv.k.data.data(), DType::kF32, 1, p.seq_kv, 1, p.head_dim);
  in.v = make_tensor(kv.v.data.data(), DType::kF32, 1, p.seq_kv, 1, p.head_dim_v);
  const auto forward = reference::forward(p, in);
  const auto backward = reference::backward(
      p, in, make_tensor(d_o.data(), DType::kF32, 1, p.seq_q, heads, p.head_dim_v), {});

  count_head({p, fast_bytes, Pass::kForward, order}, kv, Values::kMove);
  count_head({p, fast_bytes, Pass::kBackward, order}, kv, Values::kMove);
  for (std::int64_t h = 0; h < heads; ++h) {
    EXPECT_LT(distance(kv.heads[h].o, forward.o, h, heads), 1e-5) << name_of(order);
    for (std::int64_t i = 0; i < p.seq_q; ++i) {
      const double x = kv.heads[h].lse.at(i, 0), y = forward.lse[h * p.seq_q + i];
      EXPECT_TRUE(x == y || std::fabs(x - y) < 1e-5) << name_of(order) << " LSE " << i;
    }
    EXPECT_LT(distance(kv.heads[h].dq, backward.dq, h, heads), 1e-4) << name_of(order);
  }
  EXPECT_LT(distance(kv.dk, backward.dk, 0, 1), 1e-4) << name_of(order);
  EXPECT_LT(distance(kv.dv_grad, backward.dv, 0, 1), 1e-4) << name_of(order);
}

TEST(IoModel, TheCountedLoopsComputeAttention) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const std::int64_t lengths[][2] = {{70, 70}, {33, 90}, {90, 33}};
  for (const auto& [seq_q, seq_kv] : lengths)
    for (const Mask& mask : {Mask{}, Mask{.causal = true}, Mask{.left = 20, .right = 5}})
      for (const double fast_bytes : {6e3, 3e4}) {
        Problem p = make_problem(seq_q, seq_kv, 16, 24);
        p.heads_q = 3;
        p.mask = mask;
        const KvHead kv = testing::make_kv_head(p, Values::kMove, rng);
        for (const Order order : kOrders) expect_attention(p, kv, order, fast_bytes);
      }
}

// d^2 << M << N d: traffic is Theta(N^2 d^2 / M).
TEST(IoModel, TrafficOfTilesGoesAsN2D2OverM) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    for (const Order order : {Order::kFa1, Order::kFa2}) {
      const auto bytes = [&](std::int64_t n, std::int64_t d, double m) {
        const Problem p = make_problem(n, n, d, d);
        const double counted = count({p, m, pass, order});
        EXPECT_NEAR(predicted(io_model(p, m, pass), order) / counted, 1, kAgreement);
        return counted;
      };
      const double base = bytes(16384, 64, 256e3);
      EXPECT_NEAR(base / bytes(16384, 64, 512e3), 2, 0.35) << name_of(order) << ": M doubled";
      EXPECT_NEAR(std::log2(bytes(32768, 64, 256e3) / base), 2, 0.1)
          << name_of(order) << ": N doubled";
      EXPECT_NEAR(std::log2(base / bytes(16384, 32, 256e3)), 2, 0.6)
          << name_of(order) << ": d halved";
    }
}

TEST(IoModel, TrafficOfStandardGoesAsN2WhateverM) {
  const auto bytes = [](std::int64_t n, double m) {
    return count({make_problem(n, n, 64, 64), m, Pass::kForward, Order::kStandard});
  };
  EXPECT_NEAR(std::log2(bytes(16384, 1e6) / bytes(8192, 1e6)), 2, 0.05);
  EXPECT_NEAR(bytes(8192, 1e6) / bytes(8192, 4e6), 1, 0.2);
}

TEST(IoModel, Fa2MovesLessThanFa1MovesLessThanStandardWhereD2IsFarBelowM) {
  for (const std::int64_t d : {32, 64, 128})
    for (const double m : {256e3, 1e6, 4e6}) {
      const IoModel io = io_model(make_problem(65536, 65536, d, d), m);
      EXPECT_LT(io.fa2_bytes, io.fa1_bytes) << "d " << d << ", M " << m;
      EXPECT_LT(io.fa1_bytes, io.standard_bytes) << "d " << d << ", M " << m;
    }
}

// Below M of about d^2 elements a tile is too small to pay: writing the matrix moves less.
TEST(IoModel, StandardMovesLessWhereMIsTiny) {
  for (const std::int64_t d : {64, 128, 256}) {
    const Problem p = make_problem(4096, 4096, d, d);
    const double d2_bytes = 4.0 * static_cast<double>(d * d);
    const IoModel tiny = io_model(p, d2_bytes / 4), large = io_model(p, d2_bytes * 8);
    EXPECT_LT(tiny.standard_bytes, tiny.fa2_bytes) << "d " << d;
    EXPECT_LT(tiny.standard_bytes, tiny.fa1_bytes) << "d " << d;
    EXPECT_LT(large.fa1_bytes, large.standard_bytes) << "d " << d;
  }
}

}  // namespace
}  // namespace tilewise
