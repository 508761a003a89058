// Each item of docs/semantics.md by name, on every kernel row, tier and dtype. Sizes straddle
// tiles.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "reference/element.h"
#include "reference/grid.h"
#include "support/rows.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;
using tilewise_test::all_rows;
using tilewise_test::expect_rows_pass;

class Semantics : public testing::TestWithParam<DType> {
 protected:
  Case make(std::vector<std::string> features) {
    Case c = maker_.make({2, 4, 2, 133, 150, 40, 24}, GetParam(), std::move(features));
    c.kind = InputKind::kNormal;
    return c;
  }
  CaseMaker maker_{tilewise_test::seed()};
};

TEST_P(Semantics, EveryFeatureAlone) {
  for (const std::string& feature : feature_names()) expect_rows_pass(make({feature}));
}

TEST_P(Semantics, ScoreTermsTogether) {
  expect_rows_pass(
      make({"scale", "softcap", "alibi", "bias", "sink", "dropout", "dlse", "window"}));
  expect_rows_pass(make({"softcap", "alibi-b", "bias-inf", "causal-top-left", "dlse"}));
}

TEST_P(Semantics, BiasBroadcastOverAnyDimensions) {
  for (int dims = 0; dims < 16; ++dims) {
    Case c = make({});
    c.name = fmt::format("bias broadcast {:04b}", dims);
    c.problem.bias = {.present = true,
                      .broadcast_batch = (dims & 1) != 0,
                      .broadcast_heads = (dims & 2) != 0,
                      .broadcast_q = (dims & 4) != 0,
                      .broadcast_kv = (dims & 8) != 0,
                      .dtype = GetParam()};
    c.problem.seq_q = 67;
    expect_rows_pass(c);
  }
}

TEST_P(Semantics, WindowsAtBothAlignments) {
  for (const Align align : {Align::kBottomRight, Align::kTopLeft})
    for (const std::int64_t left : {-1, 0, 1, 64})
      for (const std::int64_t right : {-1, 0, 63}) {
        Case c = make({});
        c.name = fmt::format("window {},{} align {}", left, right, static_cast<int>(align));
        c.problem.mask = {.left = left, .right = right, .align = align};
        c.problem.seq_q = 90, c.problem.seq_kv = 70;
        expect_rows_pass(c);
      }
}

TEST_P(Semantics, CausalAndWindowIntersect) {
  Case c = make({"causal"});
  c.problem.mask.left = 20, c.problem.mask.right = 20;
  expect_rows_pass(c);
}

TEST_P(Semantics, NegativeAndZeroScale) {
  for (const float scale : {-0.3f, 0.0f}) {
    Case c = make({"causal", "sink", "dlse"});
    c.problem.scale = scale;
    expect_rows_pass(c);
  }
}

// Rows past seqused are written, and neither they nor keys past seqused are read (they hold NaN).
TEST_P(Semantics, SequsedOnEitherSide) {
  for (const bool q : {false, true})
    for (const bool kv : {false, true}) {
      Case c = make({"causal", "sink", "dlse", "bias"});
      c.problem.varlen.seqused_q = q, c.problem.varlen.seqused_kv = kv;
      if (q) c.lengths.used_q = {0, 101};
      if (kv) c.lengths.used_kv = {150, 66};
      c.name = fmt::format("seqused q {} kv {}", q, kv);
      expect_rows_pass(c);
    }
}

TEST_P(Semantics, NoBatchNoHeadsNoQueriesNoKeys) {
  for (int none = 0; none < 4; ++none) {
    Case c = make({"causal", "dlse", "bias"});
    c.name = fmt::format("nothing {}", none);
    if (none == 0) c.problem.batch = 0;
    if (none == 1) c.problem.heads_q = c.problem.heads_kv = 0;
    if (none == 2) c.problem.seq_q = 0;
    if (none == 3) c.problem.seq_kv = 0;
    expect_rows_pass(c);
  }
}

INSTANTIATE_TEST_SUITE_P(DType, Semantics, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return tilewise::name_of(info.param); });

// LSE does not know of dropout, and the kept elements are the documented ones whatever the tiles: V
// is the identity, so O is the matrix of weights.
TEST(SemanticsOfDropout, TheSameElementsForEveryKernelAndTiling) {
  Case c;
  c.problem.heads_q = c.problem.heads_kv = 2;
  c.problem.seq_q = 130, c.problem.seq_kv = c.problem.head_dim_v = 140, c.problem.head_dim = 16;
  c.problem.dropout_p = 0.4f;
  Workload w(c, tilewise_test::seed());
  std::int64_t at = 0;
  for_each_offset(w.in.v, [&](std::int64_t offset) {
    const std::int64_t d = at % 140, j = at++ / 140 / 2;
    store_element(w.in.v, offset, d == j ? 1 : 0);
  });
  const DropoutRule rule{dropout_key(w.in.dropout_seed, w.in.dropout_offset),
                         dropout_threshold(0.4f)};
  const ForwardResult ref = forward(c.problem, w.in);
  for (const auto& row : all_rows())
    for (const std::int64_t tile : {0, 16, 64}) {
      Options options = row.options();
      options.tile_q = options.tile_kv = tile;
      w.poison_outputs();
      tilewise_test::run_forward(c.problem, options, w.in, w.out);
      EXPECT_TRUE(judge_lse(w.out.lse, ref.lse, {}).pass) << row.name();
      std::int64_t wrong = 0;
      at = 0;
      for_each_offset(w.out.o, [&](std::int64_t offset) {
        const std::int64_t j = at % 140, h = at / 140 % 2, i = at++ / 280;
        const bool kept = load_element(w.out.o, offset) > 0;
        wrong += kept != dropout_keep(rule, 0, static_cast<std::uint32_t>(h),
                                      static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j));
      });
      EXPECT_EQ(wrong, 0) << row.name() << " tile " << tile;
    }
}

}  // namespace
