// `tilewise info`: this library and this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "cpu/machine.h"
#include "cpu/registry.h"
#include "cuda/runtime/cubin_store.h"
#include "cuda/runtime/driver.h"
#include "cuda/table.h"
#include "report.h"
#include "tilewise/tilewise.h"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;

struct GpuFacts {
  std::string why_none;  // empty where there are GPUs
  std::vector<std::string> names;
  int driver = 0;
  std::string nvrtc, why_no_nvrtc;
  cuda::StorePaths paths;
  std::string bundle;  // in words
};

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

GpuFacts gpu_facts() {
  GpuFacts f;
  const auto count = cuda::device_count();
  if (count.ok()) f.driver = (*cuda::driver())->version;
  for (int i = 0; count.ok() && i < *count; ++i) {
    const auto device = cuda::device_context(i);
    f.names.push_back(device.ok()
                          ? fmt::format("cuda:{} {}, compute capability {:.1f}, {} "
                                        "multiprocessors",
                                        i, (*device)->name, (*device)->compute_capability / 10.0,
                                        (*device)->multiprocessors)
                          : fmt::format("cuda:{} {}", i, device.status().message()));
  }
  if (f.names.empty()) f.why_none = count.ok() ? "no CUDA device" : count.status().message();
  const auto nvrtc = cuda::nvrtc_version();
  (nvrtc.ok() ? f.nvrtc : f.why_no_nvrtc) = nvrtc.ok() ? *nvrtc : nvrtc.status().message();
  f.paths = cuda::store_paths();
  const Expected<cuda::Bundle>& bundle = cuda::cubin_store().bundle();
  f.bundle = bundle.ok() ? fmt::format("{}, {} kernels", bundle->path(), bundle->size())
                         : bundle.status().message();
  return f;
}

Json to_json(const GpuFacts& f) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"devices", f.names},
          {"why_none", or_null(f.why_none)},
          {"driver_cuda", f.driver ? Json(cuda_version(f.driver)) : Json()},
          {"nvrtc", or_null(f.nvrtc)},
          {"why_no_nvrtc", or_null(f.why_no_nvrtc)},
          {"cache", or_null(f.paths.cache)},
          {"bundle", f.bundle}};
}

void print_gpu(const GpuFacts& f) {
  if (f.names.empty()) fmt::print("GPU      none: {}\n", f.why_none);
  for (const std::string& name : f.names) fmt::print("GPU      {}\n", name);
  if (f.driver) fmt::print("driver   supports CUDA {}\n", cuda_version(f.driver));
  fmt::print("NVRTC    {}\n", f.nvrtc.empty() ? "none: " + f.why_no_nvrtc : f.nvrtc);
  fmt::print("cache    {} (TILEWISE_CACHE)\n", f.paths.cache.empty() ? "none" : f.paths.cache);
  fmt::print("bundle   {} (TILEWISE_BUNDLE)\n", f.bundle);
}

Json facts(const GpuFacts& gpu) {
  const cpu::Machine& m = cpu::machine();
  Json compiled = Json::array(), kernels = Json::array();
  for (const cpu::Tier& tier : cpu::all_tiers()) compiled.push_back(tier.name);
  for (const cpu::KernelRow& row : cpu::kernel_table())
    kernels.push_back({{"name", row.name},
                       {"what", row.summary},
                       {"forward", row.forward != nullptr},
                       {"backward", row.backward != nullptr}});
  return {{"version", TW_VERSION},
          {"cpu", m.model},
          {"cores", m.cores},
          {"cache_bytes", {{"l1", m.l1_bytes}, {"l2", m.l2_bytes}, {"l3", m.l3_bytes}}},
          {"isa_usable", isa_names()},
          {"isa_compiled", compiled},
          {"kernels", kernels},
          {"gpu", to_json(gpu)}};
}

int info(bool json) {
  const GpuFacts gpu = gpu_facts();
  const Json f = facts(gpu);
  if (json) {
    fmt::print("{}\n", f.dump(2));
    return kExitOk;
  }
  const cpu::Machine& m = cpu::machine();
  std::vector<std::string> compiled;
  for (const cpu::Tier& tier : cpu::all_tiers()) compiled.push_back(tier.name);
  const auto cache = [](std::int64_t bytes) {
    return bytes ? bytes_text(static_cast<double>(bytes)) : std::string("unknown");
  };
  fmt::print("tilewise {}\n", TW_VERSION);
  fmt::print("CPU      {}, {} cores usable\n", m.model, m.cores);
  fmt::print("caches   L1 {}, L2 {}, L3 {}\n", cache(m.l1_bytes), cache(m.l2_bytes),
             cache(m.l3_bytes));
  fmt::print("SIMD     {} usable, best first; {} compiled (TILEWISE_CPU_ISA sets an upper bound)\n",
             fmt::join(isa_names(), ", "), fmt::join(compiled, ", "));
  print_gpu(gpu);
  fmt::print("kernels\n");
  for (const cpu::KernelRow& row : cpu::kernel_table())
    fmt::print("  {:<10} {}\n", row.name, row.summary);
  fmt::print("  {:<10} {}, on Hopper GPUs\n", cuda::kForwardKernel, cuda::kForwardSummary);
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("info", "version, processor, SIMD tiers, GPUs, kernels");
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "print JSON");
  sub->footer("Example:\n  tilewise info --json");
  sub->callback([json, &run] { run = [json] { return info(*json); }; });
}

}  // namespace tilewise::tools
