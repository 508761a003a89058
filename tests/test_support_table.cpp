// The README's support table is what the kernel tables say. `./dev docs` runs this with
// TILEWISE_WRITE_DOCS set, which writes the table instead of comparing it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "cpu/registry.h"
#include "cuda/table.h"
#include "reference/grid.h"
#include "tilewise/tilewise.hpp"

namespace {

const std::string kReadme = TILEWISE_SOURCE_DIR "/README.md";
const std::string kBegin = "<!-- support table: written by ./dev docs from the kernel tables -->\n";
const std::string kEnd = "<!-- end of support table -->\n";

std::string support_table() {
  std::string out =
      "| `--kernel` | order of work | forward | backward | why `auto` passes it over |\n"
      "| --- | --- | --- | --- | --- |\n";
  tilewise::Problem long_prompt;
  long_prompt.seq_q = long_prompt.seq_kv = 4096;
  for (const auto& row : tilewise::cpu::kernel_table())
    out += fmt::format("| {} | {} | {} | {} | {} |\n", row.name, row.summary,
                       row.forward ? "yes" : "no", row.backward ? "yes" : "no",
                       row.automatic(long_prompt) ? "(it takes this one)" : row.not_automatic);
  out += fmt::format("| {} | {} | yes | yes | runs on Hopper GPUs, where it is the one |\n",
                     tilewise::cuda::kForwardKernel, tilewise::cuda::kForwardSummary);
  out += "\nInstruction sets of the CPU kernels, in the order that `auto` takes them:";
  for (const auto& tier : tilewise::cpu::all_tiers())
    if (std::string(tier.name) != "amx_emulated")  // for tests only
      out += fmt::format("{} `{}`", &tier == &tilewise::cpu::all_tiers().front() ? "" : ",",
                         tier.name);
  return out + ".\n";
}

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(SupportTable, ReadmeIsUpToDate) {
  std::string readme = read(kReadme);
  const std::size_t begin = readme.find(kBegin), end = readme.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << kReadme;
  ASSERT_NE(end, std::string::npos) << kReadme;
  const std::size_t at = begin + kBegin.size();
  if (std::getenv("TILEWISE_WRITE_DOCS")) {
    readme.replace(at, end - at, support_table());
    ASSERT_TRUE(std::ofstream(kReadme) << readme) << kReadme;
    return;
  }
  EXPECT_EQ(readme.substr(at, end - at), support_table()) << "run ./dev docs";
}

// What the README says above the table: every row runs every feature in every dtype, both ways.
TEST(SupportTable, EveryRowTakesEveryFeature) {
  using namespace tilewise;
  reference::CaseMaker maker(1);
  for (const std::string& feature : reference::feature_names())
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16})
      for (const std::string& kernel : kernel_names()) {
        const auto c = maker.make({2, 6, 2, 48, 40, 64, 32}, dtype, {feature});
        Options options;
        options.kernel = kernel;
        const auto plan = make_plan(c.problem, {}, options);
        ASSERT_TRUE(plan.ok()) << kernel << ", " << c.name << ": " << plan.status().message();
        EXPECT_EQ(plan->forward.kernel, kernel) << c.name;
        EXPECT_FALSE(plan->backward.kernel.empty()) << kernel << ", " << c.name;
      }
}

}  // namespace
