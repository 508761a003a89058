// `tilewise bench`: a table over a grid of problems and kernels, and the records of it as JSON
// lines.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "bench_grid.h"
#include "command.h"
#include "cpu/machine.h"
#include "cuda/runtime/driver.h"
#include "flags.h"
#include "gpu_memory.h"
#include "io/bench_record.h"
#include "meter.h"
#include "numbers.h"
#include "plan/io_model.h"
#include "progress.h"
#include "report.h"

namespace tilewise::tools {
namespace {

struct Flags {
  BenchGrid grid;
  std::string json;
};

std::string mask_text(const Mask& m) {
  if (m.causal) return "causal";
  return m.left < 0 && m.right < 0 ? "full" : fmt::format("{}:{}", m.left, m.right);
}

void print_row(const BenchPoint& point, const Measured& m, const io::BenchRecord& r) {
  const Problem& p = point.problem;
  const double tflops = r.flops / m.ms_median * 1e-9;
  fmt::print(
      "{:<4} {:<5} {:<9} {:>3} {:>3} {:>3} {:>7} {:>4} {:>4}  {:<9} {:<7} {:>3} {:>10.3f} "
      "{:>9.1f} {:>7} {:>11} {:>11}\n",
      point.pass, name_of(p.dtype), mask_text(p.mask), p.batch, p.heads_q, p.heads_kv, p.seq_q,
      p.head_dim, p.head_dim_v, m.kernel, m.isa, m.threads, m.ms_median, tflops * 1e3,
      r.ceiling_tflops ? fmt::format("{:.1f}%", 100 * tflops / *r.ceiling_tflops) : "-",
      bytes_text(static_cast<double>(m.workspace_bytes)),
      m.peak_extra_bytes ? bytes_text(*m.peak_extra_bytes) : "unknown");
  std::fflush(stdout);
}

Status bench(const Flags& f) {
  const Expected<std::vector<BenchPoint>> points = points_of(f.grid);
  if (!points.ok()) return points.status();
  std::vector<Options> options;
  for (const int threads : f.grid.threads)
    for (const std::string& kernel : f.grid.kernels) {
      options.emplace_back();
      options.back().kernel = kernel;
      options.back().threads = threads;
      options.back().isa = f.grid.isa;
    }
  const bool gpu = f.grid.device.kind == Device::Kind::kCuda;
  if (gpu)
    if (Status s = use_gpu(f.grid.device.index); !s.ok()) return s;
  const std::string device =
      gpu ? (*cuda::device_context(f.grid.device.index))->name : "CPU " + cpu::machine().model;
  std::map<int, double> ceilings;  // by threads
  fmt::print(
      "{}\n{:<4} {:<5} {:<9} {:>3} {:>3} {:>3} {:>7} {:>4} {:>4}  {:<9} {:<7} {:>3} {:>10} {:>9} "
      "{:>7} "
      "{:>11} {:>11}\n",
      device, "pass", "dtype", "mask", "B", "Hq", "Hkv", "S", "D", "Dv", "kernel", "isa", "thr",
      "ms", "GFLOP/s", "of FMA", "workspace", "peak extra");
  Progress progress("bench", static_cast<std::int64_t>(points->size()));
  for (const BenchPoint& point : *points) {
    const Expected<std::vector<Measured>> measured = measure(point, options, f.grid.repeat);
    if (!measured.ok()) return measured.status();
    for (const Measured& m : *measured) {
      io::BenchRecord r;
      r.pass = point.pass;
      r.problem = point.problem;
      r.device = device;
      r.threads = m.threads;
      r.kernel = m.kernel;
      r.ms_median = m.ms_median;
      r.flops =
          nominal_flops(point.problem, point.pass == "bwd" ? Pass::kBackward : Pass::kForward);
      if (!gpu) {
        double& ceiling = ceilings[m.threads];
        if (ceiling == 0) ceiling = fma_ceiling_tflops(m.threads);
        r.ceiling_tflops = ceiling;
      }
      r.peak_extra_bytes = m.peak_extra_bytes;
      print_row(point, m, r);
      if (f.json.empty()) continue;
      if (Status s = io::append_record(f.json, r); !s.ok()) return s;
    }
    progress.advance();
  }
  return {};
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("bench", "times kernels over a grid of problems");
  const auto f = std::make_shared<Flags>();
  BenchGrid& g = f->grid;
  const auto list = [&](const char* name, auto& to, const char* help) {
    return sub->add_option(name, to, help)->delimiter(',')->capture_default_str();
  };
  const auto number = [&](const char* name, auto& to, const char* help) {
    sub->add_option(name, to, help)->check(whole_number(1))->type_name("N");
  };
  list("--pass", g.passes, "fwd, bwd")->check(CLI::IsMember({"fwd", "bwd"}).description(""));
  const std::map<std::string, DType> dtypes = {
      {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}};
  list("--dtype", g.dtypes, "f32, f16, bf16")
      ->transform(CLI::CheckedTransformer(dtypes).description(""))
      ->default_str("f32");
  list("--mask", g.masks, "full, causal, or a window LEFT:RIGHT");
  add_device_flag(*sub, g.device);
  list("--d", g.head_dims, "head dims D");
  list("--s", g.seqs, "lengths Sq = Sk");
  list("--kernel", g.kernels, "kernels to compare, timed in turn");
  list("--threads", g.threads, "thread counts; 0: all");
  number("--batch", g.batch, "default 1");
  number("--heads-q", g.heads_q, "default 1");
  number("--heads-kv", g.heads_kv, "default heads-q");
  number("--dv", g.head_dim_v, "default D");
  number("--repeat", g.repeat, "timed runs of each; the median counts; default 7");
  sub->add_option("--isa", g.isa, "SIMD tier; default auto");
  sub->add_option("--json", f->json, "append one JSON object a line")->type_name("FILE");
  sub->footer(
      "FLOPs are nominal: 2 (D + Dv) for each visible score, the backward 2.5 times that. \"of "
      "FMA\" is\n"
      "the fraction of the f32 multiply-adds that the same threads do in registers, measured in "
      "this\n"
      "run. \"peak extra\" is what resident memory rose by beyond inputs and outputs. Neither is "
      "measured on\n"
      "a GPU.\n\n"
      "Example:\n"
      "  tilewise bench --dtype f32,bf16 --mask causal --s 1024,4096 --kernel auto,standard \\\n"
      "    --json bench/results/cpu.jsonl");
  sub->callback([f, &run] {
    run = [f] {
      const Status s = bench(*f);
      return s.ok() ? kExitOk : fail("bench", s);
    };
  });
}

}  // namespace tilewise::tools
