// Memory grows with S, not with S^2: what a forward and a backward need beyond inputs and outputs,
// as the plan says and as the process' peak shows. N = 65536 itself is long; TILEWISE_TEST_MEMORY_N
// sets it, and the law (twice N, at most twice the memory) holds at the size used here.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "support/rows.h"

namespace {

using namespace tilewise;

constexpr std::int64_t kHeadDim = 64;
constexpr double kMiB = 1 << 20;

Problem make_problem(std::int64_t n) {
  Problem p;
  p.seq_q = p.seq_kv = n, p.head_dim = p.head_dim_v = kHeadDim;
  return p;
}

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

// Nine tensors of N x D that are all touched beforehand, so that what the peak rises by is extra.
struct Tensors {
  explicit Tensors(std::int64_t n) : memory(9, std::vector<float>(n * kHeadDim)), lse(n) {
    for (std::size_t t = 0; t < 9; ++t)
      for (std::size_t i = 0; i < memory[t].size(); ++i)
        memory[t][i] = static_cast<float>((i * 2654435761u + t * 40503u) % 1021) / 510.5f - 1;
    const auto view = [&](int t) {
      return make_tensor(memory[t].data(), DType::kF32, 1, n, 1, kHeadDim);
    };
    in.q = view(0), in.k = view(1), in.v = view(2);
    out.o = grads.o = view(3), grads.d_o = view(4);
    grads.dq = view(5), grads.dk = view(6), grads.dv = view(7);
    out.lse = grads.lse = make_tensor(lse.data(), DType::kF32, 1, 1, n);
  }
  std::vector<std::vector<float>> memory;
  std::vector<float> lse;
  Inputs in;
  Outputs out;
  Gradients grads;
};

// The rise of the peak, in a process of its own, so that nothing else's peak hides it.
double extra_bytes(std::int64_t n, const Options& options) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    double extra = -1;
    {
      Tensors t(n);
      const double before = peak_bytes();
      const auto plan = make_plan(make_problem(n), {}, options);
      if (plan.ok()) {
        const Workspace space(plan->forward);
        const bool ok = tilewise::forward(*plan, t.in, t.out, space.launch()).ok();
        const Workspace back(plan->backward);
        if (ok && tilewise::backward(*plan, t.in, t.grads, back.launch()).ok())
          extra = peak_bytes() - before;
      }
    }
    const bool sent = write(ends[1], &extra, sizeof extra) == sizeof extra;
    _exit(sent ? 0 : 1);
  }
  double extra = -1;
  const bool got = read(ends[0], &extra, sizeof extra) == sizeof extra;
  close(ends[0]), close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return got && status == 0 ? extra : -1;
}

Options tiled(const char* kernel, int threads) {
  Options o;
  o.kernel = kernel, o.threads = threads;
  return o;
}

// What is said holds for the process: nothing is allocated behind the caller's back.
TEST(Memory, PeakStaysWithin64MiBAndWithinThePlan) {
  const char* given = std::getenv("TILEWISE_TEST_MEMORY_N");
  const std::int64_t n = given ? std::strtoll(given, nullptr, 10) : 65536;
  for (const char* kernel : {"fa2", "fa1"}) {
    const auto plan = make_plan(make_problem(n), {}, tiled(kernel, 1));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const double planned = static_cast<double>(plan->forward.workspace_bytes) +
                           static_cast<double>(plan->backward.workspace_bytes);
    // One thread: the child of a process that has used OpenMP must not start more.
    const double extra = extra_bytes(n, tiled(kernel, 1));
    std::printf("%s: N = %lld, peak_extra_bytes = %.0f (planned %.0f)\n", kernel,
                static_cast<long long>(n), extra, planned);
    ASSERT_GE(extra, 0);
    EXPECT_LE(extra, planned + 4 * kMiB);
    EXPECT_LE(extra, 64 * kMiB);
  }
}

// The same at N = 65536, where the score matrix has 16 GiB, as the plan says.
TEST(Memory, PlanOf65536StaysWithin64MiB) {
  for (const char* kernel : {"fa2", "fa1"})
    for (const int threads : {1, 2, 8, 64}) {
      const auto plan = make_plan(make_problem(65536), {}, tiled(kernel, threads));
      ASSERT_TRUE(plan.ok());
      EXPECT_LE(plan->forward.workspace_bytes + plan->backward.workspace_bytes, 64 * kMiB)
          << kernel << " threads " << threads;
    }
}

TEST(Memory, GrowsNoFasterThanN) {
  for (const char* kernel : {"fa2", "fa1"})
    for (std::int64_t n = 1024; n <= (1 << 20); n *= 2) {
      const auto small = make_plan(make_problem(n), {}, tiled(kernel, 2));
      const auto large = make_plan(make_problem(2 * n), {}, tiled(kernel, 2));
      ASSERT_TRUE(small.ok() && large.ok());
      EXPECT_LE(large->forward.workspace_bytes, 2 * small->forward.workspace_bytes);
      EXPECT_LE(large->backward.workspace_bytes, 2 * small->backward.workspace_bytes);
    }
}

// The baseline does write the matrix, so the measurement above can tell the difference.
TEST(Memory, StandardNeedsTheMatrix) {
  const std::int64_t n = 4096;
  EXPECT_GE(extra_bytes(n, tiled("standard", 1)), 4.0 * static_cast<double>(n * n));
}

}  // namespace
