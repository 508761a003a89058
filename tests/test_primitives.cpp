// Every primitive's test kernel compiles without spills, and every primitive has one. What they
// compute is for a Hopper card to say (gpu_primitives.cpp).
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "cuda/runtime/device_sources.h"
#include "cuda/runtime/nvrtc.h"
#include "primitives/primitive.h"
#include "support/cubin_report.h"

namespace tilewise::test {
namespace {

class Primitives : public testing::TestWithParam<std::size_t> {};

TEST_P(Primitives, Compile) {
  if (const std::string reason = why_no_compiler(); !reason.empty()) GTEST_SKIP() << reason;
  const NamedPrimitive& named = Registered::all()[GetParam()];
  const auto compiled = cuda::nvrtc_compile(source_of(named.make()), "sm_90a");
  ASSERT_TRUE(compiled.ok()) << named.name << "\n" << compiled.status().message();
  EXPECT_NE(compiled->log.find(" 0 bytes spill stores"), std::string::npos) << compiled->log;
  for (const char* complaint : {"warning", "C75"})  // C75: products run one by one
    EXPECT_EQ(compiled->log.find(complaint), std::string::npos) << named.name << compiled->log;
}

INSTANTIATE_TEST_SUITE_P(Each, Primitives, testing::Range(std::size_t{0}, Registered::all().size()),
                         [](const auto& info) {
                           return std::regex_replace(Registered::all()[info.param].name,
                                                     std::regex("\\W+"), "_");
                         });

// The functions of ptx/ and tile/, by name; wgmma's shapes by their headers.
std::set<std::string> primitives() {
  std::set<std::string> out;
  const std::regex function(R"(TW_DEVICE[\w\s:*&<>]*?\b(\w+)\()");
  for (const cuda::DeviceSource& header : cuda::device_sources()) {
    const std::string name = header.name, text = header.text;
    if (name.find("device/ptx/wgmma/") != std::string::npos)
      out.insert(name);
    else if (name.find("device/ptx/") != std::string::npos ||
             name.find("device/tile/") != std::string::npos)
      for (std::sregex_iterator i(text.begin(), text.end(), function), end; i != end; ++i)
        out.insert((*i)[1]);
  }
  out.erase("descriptor");  // private to a tile
  return out;
}

TEST(PrimitiveTests, EachPrimitiveHasOne) {
  std::string code;
  for (const NamedPrimitive& named : Registered::all()) {
    const Primitive p = named.make();
    for (const std::string& header : p.headers) code += header + "\n";
    code += p.declarations + p.body;
  }
  const std::set<std::string> names = primitives();
  EXPECT_GT(names.size(), 70u);
  for (const std::string& name : names)
    EXPECT_TRUE(std::regex_search(code, std::regex("\\b" + name + "\\b")))
        << name << " has no test kernel in tests/primitives/";
}

}  // namespace
}  // namespace tilewise::test
