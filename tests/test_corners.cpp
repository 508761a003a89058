// One named test for each input that breaks a well-known library, on every kernel row and tier.
// The semantics' own corners are in test_semantics.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/element.h"
#include "support/rows.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;
using tilewise_test::all_rows;
using tilewise_test::expect_rows_pass;

Case base(std::string name, DType dtype = DType::kF32) {
  Case c;
  c.name = std::move(name);
  Problem& p = c.problem;
  p.batch = 2, p.heads_q = 4, p.heads_kv = 2, p.seq_q = 70, p.seq_kv = 90;
  p.head_dim = p.head_dim_v = 32, p.dtype = dtype;
  return c;
}

constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// All keys of a head alike and all logits of a row alike, around `logit`: what the answer depends
// on is then how a kernel handles the size of logits, not how it rounds them.
void make_logits_equal(const Case& c, Workload& w, double logit) {
  const double scale = 1 / std::sqrt(static_cast<double>(c.problem.head_dim));
  const double q = std::exp2(std::round(std::log2(std::abs(logit) / scale) / 2));
  const Tensor &tq = w.in.q, &tk = w.in.k;
  std::int64_t at = 0;
  for_each_offset(tq, [&](std::int64_t offset) {
    if (at++ % c.problem.head_dim == 0 && !std::isnan(load_element(tq, offset)))
      store_element(tq, offset, -q);
  });
  for_each_offset(tk, [&](std::int64_t offset) {
    if (!std::isnan(load_element(tk, offset)))
      store_element(tk, offset, at % c.problem.head_dim == 0 ? -logit / scale / q : 0.25);
    ++at;
  });
}

TEST(Corners, LseFarBelowMinus88WithPaddedKeys) {
  for (const DType dtype : kAllTypes)
    for (const double logit : {-100.0, -1000.0}) {
      Case c = base(fmt::format("padded keys, logits of {}", logit), dtype);
      c.problem.varlen.seqused_kv = true;
      c.lengths.used_kv = {53, 89};
      c.d_lse = true;
      expect_rows_pass(c, [&](Workload& w) { make_logits_equal(c, w, logit); });
    }
}

TEST(Corners, EveryLogitBelowMinus50000) {
  for (const DType dtype : kAllTypes) {
    Case c = base("logits below -5e4", dtype);
    c.problem.mask.causal = true;
    expect_rows_pass(c, [&](Workload& w) {
      make_logits_equal(c, w, -6e4);
      for (const double lse : forward(c.problem, w.in).lse) ASSERT_LT(lse, -5e4);
    });
  }
}

// The lowest finite number as a bias is how many models spell "masked". Keys are alike, so that
// where all of a row is masked that way its logits are equal, and the answer is the mean, however
// little of q . k the sum can hold.
TEST(Corners, BiasAtTheLimitsOfItsDtype) {
  for (const DType bias : kAllTypes)
    for (const bool whole_rows : {false, true}) {
      Case c = base(fmt::format("lowest bias in {}", name_of(bias)));
      c.problem.bias = {.present = true, .dtype = bias};
      Workload w(c, tilewise_test::seed());
      make_logits_equal(c, w, 1);
      const double lowest = bias == DType::kF16    ? -65504
                            : bias == DType::kBF16 ? -3.3895313892515355e38
                                                   : std::numeric_limits<float>::lowest();
      const std::int64_t row = c.problem.seq_kv;
      std::int64_t at = 0;
      for_each_offset(w.in.bias, [&](std::int64_t offset) {
        const std::int64_t j = at % row, i = at++ / row;
        if (whole_rows ? i % 3 == 0 : j % 4 == 1) store_element(w.in.bias, offset, lowest);
      });
      w.seal_inputs();
      const Oracle oracle = make_oracle(c.problem, w.in, w.grads, Passes::kForward);
      for (const auto& row_of_table : all_rows()) {
        w.poison_outputs();
        tilewise_test::run_forward(c.problem, row_of_table.options(), w.in, w.out);
        const Verdict o = judge(measure_output(c.problem, oracle, w.out));
        EXPECT_TRUE(o.pass) << row_of_table.name() << " [" << c.name << "] " << o.text;
        // judge_lse allows what rounding a logit with such a bias may cost; LSE itself is small
        // here.
        std::size_t next = 0;
        for_each_offset(w.out.lse, [&](std::int64_t offset) {
          const double lse = load_element(w.out.lse, offset), ref = oracle.ref.lse[next++];
          EXPECT_LE(std::abs(lse - ref), 1e-5 + 1e-6 * std::abs(ref))
              << row_of_table.name() << " [" << c.name << "]";
        });
      }
    }
}

TEST(Corners, SequencesOfOne) {
  for (const DType dtype : kAllTypes)
    for (const std::int64_t sq : {1, 70})
      for (const std::int64_t sk : {1, 90})
        for (const bool causal : {false, true}) {
          Case c = base("S = 1", dtype);
          c.problem.seq_q = sq, c.problem.seq_kv = sk, c.problem.mask.causal = causal;
          c.d_lse = true;
          if (sq == 1 || sk == 1) expect_rows_pass(c);
        }
}

Case packed(std::string name, std::vector<std::int32_t> q, std::vector<std::int32_t> kv,
            DType dtype = DType::kF32) {
  Case c = base(std::move(name), dtype);
  Problem& p = c.problem;
  p.batch = static_cast<std::int64_t>(q.size());
  p.varlen.cu_seqlens_q = p.varlen.cu_seqlens_kv = true;
  p.seq_q = p.seq_kv = 0;
  const auto pack = [](const std::vector<std::int32_t>& n, std::vector<std::int32_t>& cu,
                       std::int64_t& longest) {
    cu.assign(1, 0);
    for (const std::int32_t x : n) {
      cu.push_back(cu.back() + x);
      longest = std::max<std::int64_t>(longest, x);
    }
    return cu.back();
  };
  p.varlen.total_q = pack(q, c.lengths.cu_q, p.seq_q);
  p.varlen.total_kv = pack(kv, c.lengths.cu_kv, p.seq_kv);
  c.d_lse = true;
  return c;
}

TEST(Corners, ZeroLengthSequenceFirst) {
  for (const DType t : kAllTypes) expect_rows_pass(packed("first", {0, 70, 33}, {0, 64, 65}, t));
}
TEST(Corners, ZeroLengthSequenceMiddle) {
  for (const DType t : kAllTypes) expect_rows_pass(packed("middle", {70, 0, 33}, {64, 0, 65}, t));
}
TEST(Corners, ZeroLengthSequenceLast) {
  for (const DType t : kAllTypes) expect_rows_pass(packed("last", {70, 33, 0}, {64, 65, 0}, t));
}
TEST(Corners, ZeroLengthSequencesOnOneSideOnly) {
  expect_rows_pass(packed("no queries", {0, 20, 0, 17}, {30, 64, 5, 65}));
  expect_rows_pass(packed("no keys", {30, 64, 5, 65}, {0, 20, 0, 17}));
  Case causal = packed("no keys, causal, sink", {30, 64, 5, 65}, {0, 20, 0, 17});
  causal.problem.mask.causal = causal.problem.sink = true;
  expect_rows_pass(causal);
}
TEST(Corners, ZeroLengthSequencesOnly) {
  expect_rows_pass(packed("all empty", {0, 0, 0}, {0, 0, 0}));
  expect_rows_pass(packed("no sequences", {}, {}));
}
TEST(Corners, OneLongSequenceAmongManyTiny) {
  expect_rows_pass(packed("tiny", {1, 2, 300, 1, 0, 3, 1}, {2, 1, 310, 0, 4, 1, 1}));
}

TEST(Corners, CausalWithMoreQueriesThanKeys) {
  for (const DType dtype : kAllTypes)
    for (const bool sink : {false, true}) {
      Case c = base("leading rows see nothing", dtype);
      c.problem.seq_q = 150, c.problem.seq_kv = 40;
      c.problem.mask.causal = true, c.problem.sink = sink, c.d_lse = true;
      expect_rows_pass(c);
    }
}

TEST(Corners, SlicesOfOneFusedProjection) {
  for (const DType dtype : kAllTypes) {
    Case c = base("fused QKV", dtype);
    c.problem.seq_kv = c.problem.seq_q;
    c.layout = Layout::kFused;
    expect_rows_pass(c);
    c.problem.head_dim_v = 24;
    expect_rows_pass(c);
  }
}

TEST(Corners, TransposedGradient) {
  Case c = base("heads first");
  c.layout = Layout::kHeadsFirst;  // dO too
  expect_rows_pass(c);
}

// What sum().backward() hands over: one row that stands for all.
TEST(Corners, ExpandedGradient) {
  Case c = base("dO with stride 0");
  expect_rows_pass(c, [](Workload& w) {
    for (int dim = 0; dim < 3; ++dim) w.grads.d_o.strides[dim] = 0;
  });
}

TEST(Corners, GroupsOf3And5And7) {
  for (const std::int64_t group : {3, 5, 7})
    for (const DType dtype : kAllTypes) {
      Case c = base(fmt::format("group of {}", group), dtype);
      c.problem.heads_q = 2 * group, c.problem.heads_kv = 2;
      c.problem.mask.causal = true;
      expect_rows_pass(c);
    }
}

// Rows whose first key tiles are empty for them, though not for others of their query tile.
TEST(Corners, RowsThatSeeNothingInTheTilesTheyVisitFirst) {
  for (const bool sink : {false, true}) {
    Case c = base("late keys");
    c.problem.seq_q = 200, c.problem.seq_kv = 200, c.problem.sink = sink;
    c.problem.mask = {.causal = true, .left = 3};
    expect_rows_pass(c);
    c.problem.mask = {.causal = false, .left = 0, .right = 0};
    expect_rows_pass(c);
  }
}

// The same for tiles whose keys a bias of -inf hides.
TEST(Corners, LeadingTilesHiddenByBias) {
  Case c = base("hidden by bias");
  c.problem.seq_kv = 300;
  c.problem.bias = {.present = true, .broadcast_batch = true};
  expect_rows_pass(c, [&](Workload& w) {
    std::int64_t at = 0;
    for_each_offset(w.in.bias, [&](std::int64_t offset) {
      const std::int64_t j = at % 300, i = at++ / 300 % c.problem.seq_q;
      if (j < 4 * i) store_element(w.in.bias, offset, -std::numeric_limits<double>::infinity());
    });
  });
}

// 24 GiB of addresses, a few pages of memory.
TEST(Corners, StridesBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 5;
  Case c = base("huge strides", DType::kBF16);
  Problem& p = c.problem;
  p.batch = 1, p.heads_q = p.heads_kv = 2, p.seq_q = p.seq_kv = 3, p.head_dim = p.head_dim_v = 16;
  Trial trial(c, tilewise_test::seed());
  trial.draws.resize(1);
  Workload& w = trial.draws[0]->work;
  const std::size_t bytes = (2 * kStride + 4096) * 2;
  std::vector<void*> maps;
  const auto spread = [&](Tensor& t) {
    void* m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) return false;
    maps.push_back(m);
    Tensor far = t;
    far.data = m;
    far.strides = {3 * kStride, kStride, 64, 1};
    std::vector<double> values;
    for_each_offset(t, [&](std::int64_t at) { values.push_back(load_element(t, at)); });
    std::size_t n = 0;
    for_each_offset(far, [&](std::int64_t at) { store_element(far, at, values[n++]); });
    t = far;
    return true;
  };
  bool mapped = true;
  for (Tensor* t :
       {&w.in.q, &w.in.k, &w.in.v, &w.out.o, &w.grads.d_o, &w.grads.dq, &w.grads.dk, &w.grads.dv})
    mapped = mapped && spread(*t);
  w.grads.o = w.out.o;
  if (mapped) {
    for (const auto& row : all_rows())
      for (const std::string& failure : check(trial, row.options()).failures)
        ADD_FAILURE() << row.name() << ": " << failure;
  }
  for (void* m : maps) munmap(m, bytes);
  if (!mapped) GTEST_SKIP() << "the system grants no " << bytes << " bytes of address space";
}

// A tensor that ends where its page does, the next one forbidden: no vector load may look past it.
TEST(Corners, TensorsAtTheEndOfAPage) {
  for (const DType dtype : kAllTypes)
    for (const std::int64_t d : {5, 24, 67}) {
      Case c = base("end of a page", dtype);
      Problem& p = c.problem;
      p.batch = 1, p.heads_q = p.heads_kv = 1, p.seq_q = 19, p.seq_kv = 33;
      p.head_dim = p.head_dim_v = d;
      p.bias = {.present = true, .dtype = dtype};
      Trial trial(c, tilewise_test::seed());
      trial.draws.resize(1);
      Workload& w = trial.draws[0]->work;
      constexpr std::size_t kBytes = 1 << 16, kPage = 1 << 12;
      std::vector<void*> maps;
      const auto move = [&](Tensor& t) {
        void* m = mmap(nullptr, kBytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
        ASSERT_NE(m, MAP_FAILED);
        ASSERT_EQ(mprotect(static_cast<char*>(m) + kBytes, kPage, PROT_NONE), 0);
        maps.push_back(m);
        const std::size_t size = t.elements() * size_of(t.dtype);
        ASSERT_LE(size, kBytes);
        void* to = static_cast<char*>(m) + kBytes - size;
        std::memcpy(to, t.data, size);
        t.data = to;
      };
      for (Tensor* t : {&w.in.q, &w.in.k, &w.in.v, &w.in.bias, &w.out.o, &w.out.lse, &w.grads.d_o,
                        &w.grads.dq, &w.grads.dk, &w.grads.dv, &w.grads.dbias})
        move(*t);
      w.grads.o = w.out.o, w.grads.lse = w.out.lse;
      for (const auto& row : all_rows())
        for (const std::string& failure : check(trial, row.options()).failures)
          ADD_FAILURE() << row.name() << ": " << failure;
      for (void* m : maps) munmap(m, kBytes + kPage);
    }
}

}  // namespace
