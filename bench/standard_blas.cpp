// tilewise against standard attention on a BLAS, forward, float32, and tilewise bfloat16 beside
// them. All take turns in one process, so that a noisy machine disturbs them alike. Prints medians
// and ratios; with --require exits 1 when tilewise is not as much faster as asked.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "blas_attention.h"
#include "core/half.h"
#include "cpu/machine.h"
#include "io/bench_record.h"
#include "plan/io_model.h"

namespace tilewise::bench {
namespace {

struct Settings {
  std::vector<std::int64_t> seq = {4096};
  std::int64_t head_dim = 64;
  std::vector<std::int64_t> heads = {1, 8};
  bool full = false;
  int threads = 1;
  int repeat = 15;
  std::string kernel = "auto";
  std::string json;
  std::string against = "blas";
  double require = 0;
  Clock clock = Clock::kWall;
};

// What a table is printed for.
struct Size {
  std::int64_t seq, heads;
};

// Q, K, V and O in float32 and in bfloat16.
struct Buffers {
  std::vector<float> q, k, v, o_standard, o;
  std::vector<std::uint16_t> q16, k16, v16, o16;

  explicit Buffers(std::int64_t elements) : o_standard(elements), o(elements), o16(elements) {
    std::mt19937 rng(std::random_device{}());
    std::normal_distribution<float> normal;
    for (auto [full, half] : {std::pair{&q, &q16}, {&k, &k16}, {&v, &v16}}) {
      full->resize(elements);
      half->resize(elements);
      for (std::int64_t i = 0; i < elements; ++i)
        (*half)[i] = f32_to_bf16((*full)[i] = normal(rng));
    }
  }
};

struct Contender {
  std::string impl, kernel;
  Problem problem;
  double extra_bytes = 0;
  std::function<void()> run;
  std::vector<double> ms;

  double median() const {
    std::vector<double> sorted = ms;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
};

Problem make_problem(const Settings& s, Size size, DType dtype) {
  Problem p;
  p.heads_q = p.heads_kv = size.heads;
  p.seq_q = p.seq_kv = size.seq;
  p.head_dim = p.head_dim_v = s.head_dim;
  p.dtype = dtype;
  p.mask.causal = !s.full;
  return p;
}

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "bench_standard_blas: {}\n", message);
  std::exit(2);
}

Tensor tensor_of(const Problem& p, void* data) {
  return make_tensor(data, p.dtype, 1, p.seq_q, p.heads_q, p.head_dim);
}

// A tilewise forward, planned once.
Contender tilewise_contender(const Settings& s, const Problem& problem, const Inputs& in, void* o) {
  Options options;
  options.kernel = s.kernel;
  options.threads = s.threads;
  const Expected<Plan> planned = make_plan(problem, {}, options);
  if (!planned.ok()) fail(planned.status().message());
  const auto plan = std::make_shared<Plan>(planned.value());
  const auto workspace = std::make_shared<Workspace>(plan->forward);
  const Outputs out{tensor_of(problem, o), {}};
  return {"tilewise",
          plan->forward.kernel,
          problem,
          static_cast<double>(plan->forward.workspace_bytes),
          [=] {
            const Status status = forward(*plan, in, out, workspace->launch());
            if (!status.ok()) fail(status.message());
          },
          {}};
}

std::vector<Contender> make_contenders(const Settings& s, Size size, Buffers& b) {
  const Problem f32 = make_problem(s, size, DType::kF32);
  const Problem bf16 = make_problem(s, size, DType::kBF16);
  Inputs in, in16;
  in.q = tensor_of(f32, b.q.data());
  in.k = tensor_of(f32, b.k.data());
  in.v = tensor_of(f32, b.v.data());
  in16.q = tensor_of(bf16, b.q16.data());
  in16.k = tensor_of(bf16, b.k16.data());
  in16.v = tensor_of(bf16, b.v16.data());
  const Outputs out{tensor_of(f32, b.o_standard.data()), {}};
  std::vector<Contender> all;
  for (const auto& [name, kind] :
       {std::pair{"blas-eager", StandardKind::kEager}, std::pair{"blas", StandardKind::kPlain},
        std::pair{"blas-tuned", StandardKind::kTuned}}) {
    const auto standard = std::make_shared<BlasAttention>(f32, kind, s.threads);
    all.push_back(
        {"standard", name, f32, standard->extra_bytes(), [=] { standard->forward(in, out); }, {}});
  }
  all.push_back(tilewise_contender(s, f32, in, b.o.data()));
  all.push_back(tilewise_contender(s, bf16, in16, b.o16.data()));
  return all;
}

void time_once(Contender& c, const Settings& s) {
  // Idle workers of one thread pool spin for a while, and would take the next contender's cores.
  if (s.threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const double start = seconds(s.clock);
  c.run();
  c.ms.push_back((seconds(s.clock) - start) * 1e3);
}

// Both must have computed the same thing.
void expect_equal_results(const Buffers& b) {
  double worst = 0, worst16 = 0;
  for (std::size_t i = 0; i < b.o.size(); ++i) {
    worst = std::fmax(worst, std::fabs(b.o[i] - b.o_standard[i]));
    worst16 = std::fmax(worst16, std::fabs(bf16_to_f32(b.o16[i]) - b.o_standard[i]));
  }
  fmt::print("  largest difference from standard: f32 {:.1e}, bf16 {:.1e}\n", worst, worst16);
  if (!(worst < 1e-4 && worst16 < 1e-1)) fail("tilewise and standard disagree");
}

void record(const Settings& s, const Contender& c, double ceiling) {
  if (s.json.empty()) return;
  io::BenchRecord r;
  r.pass = "fwd";
  r.problem = c.problem;
  r.device = "CPU " + cpu::machine().model;
  r.threads = s.threads;
  r.impl = c.impl;
  r.kernel = c.kernel;
  r.ms_median = c.median();
  r.flops = nominal_flops(c.problem);
  r.ceiling_tflops = ceiling * 1e-12;
  r.peak_extra_bytes = c.extra_bytes;
  const Status status = io::append_record(s.json, r);
  if (!status.ok()) fail(status.message());
}

double median_of(const std::vector<Contender>& all, const std::string& kernel, DType dtype) {
  for (const Contender& c : all)
    if (c.problem.dtype == dtype && (c.kernel == kernel || c.impl == kernel)) return c.median();
  return 0;
}

// False when tilewise is not as fast as --require wants it.
bool meets_requirement(const Settings& s, const std::vector<Contender>& all) {
  if (s.require <= 0) return true;
  const double ratio =
      median_of(all, s.against, DType::kF32) / median_of(all, "tilewise", DType::kF32);
  const double slower =
      median_of(all, "tilewise", DType::kBF16) - median_of(all, "tilewise", DType::kF32);
  if (ratio < s.require)
    fmt::print("  FAILED: f32 is {:.2f} times as fast as {}, asked for {:.2f}\n", ratio, s.against,
               s.require);
  if (slower > 0) fmt::print("  FAILED: bf16 is slower than f32, by {:.2f} ms\n", slower);
  return ratio >= s.require && slower <= 0;
}

bool run(const Settings& s, Size size, double ceiling) {
  Buffers buffers(size.seq * size.heads * s.head_dim);
  std::vector<Contender> all = make_contenders(s, size, buffers);
  for (Contender& c : all) c.run();
  for (int round = 0; round < s.repeat; ++round)
    for (Contender& c : all) time_once(c, s);

  fmt::print("\nS {}, D {}, {}, heads {}, threads {}, medians of {} ({} time)\n", size.seq,
             s.head_dim, s.full ? "full" : "causal", size.heads, s.threads, s.repeat,
             s.clock == Clock::kCpu ? "processor" : "wall");
  fmt::print("  {:<10}{:<12}{:<6}{:>10}{:>10}{:>10}{:>12}{:>12}\n", "impl", "kernel", "dtype", "ms",
             "GFLOP/s", "of sgemm", "MiB extra", "speed-up");
  for (const Contender& c : all) {
    const double flops = nominal_flops(c.problem) / c.median() * 1e3;
    fmt::print("  {:<10}{:<12}{:<6}{:>10.2f}{:>10.1f}{:>9.1f}%{:>12.2f}{:>11.2f}x\n", c.impl,
               c.kernel, name_of(c.problem.dtype), c.median(), flops * 1e-9, 100 * flops / ceiling,
               c.extra_bytes / 1048576, median_of(all, s.against, DType::kF32) / c.median());
    record(s, c, ceiling);
  }
  expect_equal_results(buffers);
  return meets_requirement(s, all);
}

}  // namespace
}  // namespace tilewise::bench

int main(int argc, char** argv) {
  using namespace tilewise::bench;
  Settings s;
  CLI::App app(
      "tilewise forward against standard attention on OpenBLAS, in one process.\n"
      "Example: env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "
      "bench_standard_blas --heads 1 --require 4 --json bench/results/cpu.jsonl");
  app.add_option("--seq", s.seq, "Sq = Sk, one run each")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--head-dim", s.head_dim, "D = Dv")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--heads", s.heads, "Heads, one run each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--full", s.full, "No mask (default: causal)");
  app.add_option("--threads", s.threads, "Threads of each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--repeat", s.repeat, "Timed rounds")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--kernel", s.kernel, "Row of tilewise's table")->capture_default_str();
  app.add_option("--json", s.json, "Append the results to this file, one JSON object a line");
  app.add_option("--against", s.against, "The baseline that speed-ups refer to")
      ->check(CLI::IsMember({"blas-eager", "blas", "blas-tuned"}))
      ->capture_default_str();
  app.add_option("--require", s.require,
                 "Exit 1 unless f32 is this many times as fast as it, and bf16 no slower than f32");
  app.add_flag_callback(
      "--cpu-time", [&s] { s.clock = Clock::kCpu; },
      "Processor time instead of wall time: for a machine that others use too, and one thread");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (s.clock == Clock::kCpu && s.threads != 1) fail("--cpu-time is for --threads 1");
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"})
    if (std::getenv(name))
      fmt::print(stderr, "warning: {} is set and may slow the baseline; unset it\n", name);
  fmt::print("{}\n{}\n", "CPU " + tilewise::cpu::machine().model, blas_description());
  const double ceiling = measure_sgemm_flops(s.threads, s.clock);
  fmt::print("sgemm 2048^3: {:.1f} GFLOP/s\n", ceiling * 1e-9);
  bool fast_enough = true;
  for (const std::int64_t heads : s.heads)
    for (const std::int64_t seq : s.seq) fast_enough &= run(s, {seq, heads}, ceiling);
  return fast_enough ? 0 : 1;
}
