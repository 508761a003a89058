// `tilewise info`: this library and this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "cpu/machine.h"
#include "cpu/registry.h"
#include "report.h"
#include "tilewise/tilewise.h"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;

Json facts() {
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
          {"gpu", "none"}};
}

int info(bool json) {
  const Json f = facts();
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
  fmt::print("GPU      none\nkernels\n");
  for (const cpu::KernelRow& row : cpu::kernel_table())
    fmt::print("  {:<10} {}\n", row.name, row.summary);
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("info", "version, processor, SIMD tiers, kernels");
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "print JSON");
  sub->footer("Example:\n  tilewise info --json");
  sub->callback([json, &run] { run = [json] { return info(*json); }; });
}

}  // namespace tilewise::tools
