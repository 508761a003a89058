// Results are bitwise the same on every run, for any number of threads, inside the caller's own
// parallel region, and when several threads of the caller run at once.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "reference/element.h"
#include "support/rows.h"

namespace {

using namespace tilewise;
using namespace tilewise::reference;
using tilewise_test::all_rows;
using tilewise_test::Row;

// Long enough for many tiles a head, with few heads, so that threads share a head.
Case make_case(DType dtype) {
  Case c;
  Problem& p = c.problem;
  p.heads_q = 3, p.heads_kv = 1, p.seq_q = 300, p.seq_kv = 333, p.head_dim = p.head_dim_v = 32;
  p.dtype = dtype;
  p.mask.causal = true, p.sink = true, p.dropout_p = 0.1f;
  p.bias = {.present = true, .broadcast_batch = true, .broadcast_heads = true};
  c.d_lse = true;
  return c;
}

using Bits = std::vector<float>;

void append(const Tensor& t, Bits& bits) {
  for_each_offset(
      t, [&](std::int64_t at) { bits.push_back(static_cast<float>(load_element(t, at))); });
}

// Every number that a forward and a backward give. Poison that was left would differ from itself.
Bits run(const Case& c, Workload& w, const Options& options) {
  w.poison_outputs();
  w.poison_gradients();
  tilewise_test::run_forward(c.problem, options, w.in, w.out);
  tilewise_test::run_backward(c.problem, options, w.in, w.grads);
  Bits bits;
  for (const Tensor* t : {&w.out.o, &w.out.lse, &w.grads.dq, &w.grads.dk, &w.grads.dv,
                          &w.grads.dbias, &w.grads.dsink})
    append(*t, bits);
  return bits;
}

class Determinism : public testing::TestWithParam<DType> {
 protected:
  const Case c_ = make_case(GetParam());
  const std::uint64_t seed_ = tilewise_test::seed();
};

TEST_P(Determinism, RepeatsAndThreadCounts) {
  Workload w(c_, seed_);
  for (const Row& row : all_rows()) {
    const Bits first = run(c_, w, row.options(1));
    for (const int threads : {1, 2, 3, 8, 2, 3, 8})
      EXPECT_EQ(run(c_, w, row.options(threads)), first) << row.name() << " threads " << threads;
  }
}

TEST_P(Determinism, InsideTheCallersParallelRegion) {
  constexpr int kCallers = 3;
  for (const Row& row : all_rows()) {
    Workload w(c_, seed_);
    const Bits alone = run(c_, w, row.options(2));
    Bits results[kCallers];
#pragma omp parallel for num_threads(kCallers) schedule(static, 1)
    for (int i = 0; i < kCallers; ++i) {
      Workload mine(c_, seed_);
      results[i] = run(c_, mine, row.options(2));
    }
    for (const Bits& r : results) EXPECT_EQ(r, alone) << row.name();
  }
}

TEST_P(Determinism, SeveralCallersAtOnce) {
  constexpr int kCallers = 4;
  for (const Row& row : all_rows()) {
    Workload w(c_, seed_);
    const Bits alone = run(c_, w, row.options(2));
    Bits results[kCallers];
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i)
      callers.emplace_back([&, i] {
        Workload mine(c_, seed_);
        for (int repeat = 0; repeat < 3; ++repeat) results[i] = run(c_, mine, row.options(1 + i));
      });
    for (std::thread& t : callers) t.join();
    for (const Bits& r : results) EXPECT_EQ(r, alone) << row.name();
  }
}

// Short sequences of many heads: how many of a group go together depends on the threads, their
// numbers don't.
TEST_P(Determinism, GroupsOfHeads) {
  Case c = c_;
  Problem& p = c.problem;
  p.batch = 2, p.heads_q = 12, p.heads_kv = 3, p.seq_q = 40, p.seq_kv = 75;
  Workload w(c, seed_);
  for (const Row& row : all_rows()) {
    const Bits first = run(c, w, row.options(1));
    for (const int threads : {1, 2, 8})
      EXPECT_EQ(run(c, w, row.options(threads)), first) << row.name() << " threads " << threads;
  }
}

// More threads than the machine has, and than there is work.
TEST_P(Determinism, ManyThreadsLittleWork) {
  Case c = c_;
  c.problem.seq_q = c.problem.seq_kv = 5;
  Workload w(c, seed_);
  for (const Row& row : all_rows())
    EXPECT_EQ(run(c, w, row.options(64)), run(c, w, row.options(1))) << row.name();
}

INSTANTIATE_TEST_SUITE_P(DType, Determinism, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return tilewise::name_of(info.param); });

}  // namespace
