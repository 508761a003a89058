// A NaN or an infinity in an input reaches exactly the rows that depend on it, on every row of the
// table and every tier. With a causal mask most rows of the same tile do not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/element.h"
#include "support/rows.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;
using tilewise_test::all_rows;

constexpr std::int64_t kSeq = 90, kDim = 24, kBad = 41;

class NanTest : public testing::TestWithParam<double> {
 protected:
  NanTest() : w_(make_case(), tilewise_test::seed()) {}

  static Case make_case() {
    Case c;
    c.problem.seq_q = c.problem.seq_kv = kSeq;
    c.problem.head_dim = c.problem.head_dim_v = kDim;
    c.problem.heads_q = c.problem.heads_kv = 2;
    c.problem.mask.causal = true;
    return c;
  }

  // Element (row kBad, head 0, column 3).
  void spoil(const Tensor& t) {
    store_element(t, kBad * t.strides[1] + 3, GetParam());
    w_.seal_inputs();
  }
  // Whether row i of head 0 is finite, all of it; head 1 must be anyway.
  static bool finite_row(const Tensor& t, std::int64_t i) {
    bool finite = true;
    for (std::int64_t d = 0; d < kDim; ++d) {
      finite = finite && std::isfinite(load_element(t, i * t.strides[1] + d));
      EXPECT_TRUE(std::isfinite(load_element(t, i * t.strides[1] + t.strides[2] + d)));
    }
    return finite;
  }

  template <class Expect>
  void each_row(Expect expect) {
    const Case c = make_case();
    for (const auto& row : all_rows()) {
      SCOPED_TRACE(row.name());
      w_.poison_outputs();
      w_.poison_gradients();
      tilewise_test::run_forward(c.problem, row.options(), w_.in, w_.out);
      tilewise_test::run_backward(c.problem, row.options(), w_.in, w_.grads);
      for (std::int64_t i = 0; i < kSeq && !HasFailure(); ++i) {
        SCOPED_TRACE(i);
        expect(i);
      }
    }
  }

  Workload w_;
};

// Infinities of a logit may become a weight of 0 or 1 where NaN stays NaN, so only NaN must show.
TEST_P(NanTest, InQ) {
  spoil(w_.in.q);
  each_row([&](std::int64_t i) {
    const bool may_be_bad = i == kBad, must_be_bad = may_be_bad && std::isnan(GetParam());
    const bool o = finite_row(w_.out.o, i), dq = finite_row(w_.grads.dq, i);
    EXPECT_TRUE(may_be_bad || (o && dq));
    EXPECT_FALSE(must_be_bad && (o || dq));
    // Keys after kBad are hidden from the bad query.
    EXPECT_TRUE(i <= kBad || (finite_row(w_.grads.dk, i) && finite_row(w_.grads.dv, i)));
  });
}

TEST_P(NanTest, InK) {
  spoil(w_.in.k);
  each_row([&](std::int64_t i) {
    const bool may_be_bad = i >= kBad, must_be_bad = may_be_bad && std::isnan(GetParam());
    const bool o = finite_row(w_.out.o, i), dq = finite_row(w_.grads.dq, i);
    EXPECT_TRUE(may_be_bad || (o && dq));
    EXPECT_FALSE(must_be_bad && (o || dq));
  });
}

TEST_P(NanTest, InV) {
  spoil(w_.in.v);
  each_row([&](std::int64_t i) {
    EXPECT_EQ(finite_row(w_.out.o, i), i < kBad);
    EXPECT_TRUE(i >= kBad || finite_row(w_.grads.dq, i));
  });
}

TEST_P(NanTest, InDO) {
  spoil(w_.grads.d_o);
  each_row([&](std::int64_t i) {
    EXPECT_TRUE(finite_row(w_.out.o, i));
    EXPECT_EQ(finite_row(w_.grads.dq, i), i != kBad);
    EXPECT_EQ(finite_row(w_.grads.dv, i), i > kBad);
    EXPECT_EQ(finite_row(w_.grads.dk, i), i > kBad);
  });
}

INSTANTIATE_TEST_SUITE_P(Value, NanTest,
                         testing::Values(std::numeric_limits<double>::quiet_NaN(),
                                         std::numeric_limits<double>::infinity()));

}  // namespace
