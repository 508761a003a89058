#include "support/cubin_report.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <regex>

#include "cuda/runtime/nvrtc.h"

namespace tilewise::test {
namespace {

// Instructions of 16 bytes whose opcode, the low 12 bits, is HGMMA's, with A in shared memory or in
// registers.
int tensor_core_instructions(const std::string& cubin) {
  constexpr std::uint64_t kShared = 0x9F0, kRegisters = 0xDF0;
  int count = 0;
  for (std::size_t at = 0; at + 16 <= cubin.size(); at += 16) {
    std::uint64_t word;
    std::memcpy(&word, cubin.data() + at, sizeof word);
    count += (word & 0xFFF) == kShared || (word & 0xFFF) == kRegisters;
  }
  return count;
}

}  // namespace

std::string why_no_compiler() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "NVRTC knows nothing of sanitizers";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return "NVRTC knows nothing of sanitizers";
#endif
#endif
  const auto version = cuda::nvrtc_version();
  return version.ok() ? "" : version.status().message();
}

void expect_sound_kernel(const std::string& source, const KernelPromise& promise) {
  const auto compiled = cuda::nvrtc_compile(source, "sm_90a");
  ASSERT_TRUE(compiled.ok()) << promise.name << "\n" << compiled.status().message();
  const std::string& log = compiled->log;
  std::smatch spills;
  ASSERT_TRUE(std::regex_search(log, spills, std::regex("(\\d+) bytes spill stores"))) << log;
  EXPECT_EQ(spills[1], "0") << promise.name << "\n" << log;
  // The entry's budget is what the CTA can have at once; setmaxnreg shifts it between roles.
  std::smatch registers;
  ASSERT_TRUE(std::regex_search(log, registers, std::regex("Used (\\d+) registers"))) << log;
  EXPECT_LE(std::stoi(registers[1]), 65536 / promise.threads / 8 * 8) << promise.name;
  EXPECT_EQ(log.find("C75"), std::string::npos) << promise.name << " serialized: " << log;
  EXPECT_GE(tensor_core_instructions(compiled->cubin), promise.products) << promise.name;
}

}  // namespace tilewise::test
