// Where kernels come from: bundle, cache, compiler, in that order; and that nothing on a disk, be
// it damaged, foreign, full or not writable, costs more than a compilation. No GPU and no NVRTC
// needed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "cuda/runtime/cubin_store.h"
#include "support/scratch_folder.h"

namespace tilewise::cuda {
namespace {

using test::ScratchFolder;

constexpr int kDriver = 13000;
std::atomic<int> compilations;

std::string code_of(const std::string& source) {
  return "machine code of " + source + std::string(3000, 'x');
}
Expected<std::string> version() {
  return std::string("13.0");
}
Expected<Compiled> compile(const std::string& source, const std::string&) {
  ++compilations;
  return Compiled{code_of(source), {}};
}
Expected<std::string> no_version() {
  return Status(StatusCode::kUnavailable, "NVRTC is not on this machine");
}

// What `store` gives for a source, and how often it compiled for that.
void expect_found(const CubinStore& store, const std::string& source, int times) {
  const int before = compilations;
  const auto cubin = store.find(source, "sm_90a", kDriver);
  ASSERT_TRUE(cubin.ok()) << cubin.status().message();
  EXPECT_EQ(cubin->code, code_of(source));
  EXPECT_EQ(compilations - before, times);
}

CubinStore store_at(const std::string& bundle, const std::string& cache) {
  return CubinStore({bundle, cache}, {version, compile});
}

std::string bundle_of(const std::vector<std::string>& sources,
                      const std::string& compiler = "13.0") {
  std::vector<BundleEntry> entries;
  for (const std::string& source : sources)
    entries.push_back({cubin_key(source, "sm_90a"), "sm_90a", {code_of(source), compiler}});
  return bundle_bytes(headers_digest(), entries);
}

TEST(CubinStore, BundleThenCacheThenCompiler) {
  const ScratchFolder folder;
  const std::string bundle = folder.write("b", bundle_of({"one", "two", "one"}));
  const CubinStore store = store_at(bundle, folder / "cache");
  ASSERT_TRUE(store.bundle().ok()) << store.bundle().status().message();
  EXPECT_EQ(store.bundle()->size(), 2u);
  expect_found(store, "one", 0);
  expect_found(store, "two", 0);
  expect_found(store, "three", 1);
  expect_found(store, "three", 0);
  expect_found(store_at("", folder / "cache"), "three", 0);
  expect_found(store_at("", folder / "cache"), "two", 1);
}

TEST(CubinStore, SaysWhatEachPlaceLacks) {
  const ScratchFolder folder;
  const CubinStore store({folder / "b", folder / "cache"}, {no_version, compile});
  const auto none = store.find("one", "sm_90a", kDriver);
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(none.status().message(), "no machine code for this kernel: there is no kernel bundle " +
                                         (folder / "b") + "; NVRTC is not on this machine");
  const CubinStore other({folder.write("b", bundle_of({"two"})), ""}, {no_version, compile});
  EXPECT_NE(other.find("one", "sm_90a", kDriver).status().message().find("lacks this kernel"),
            std::string::npos);
}

TEST(CubinStore, KernelsNewerThanTheDriverArePassedOver) {
  const ScratchFolder folder;
  const std::string bundle = folder.write("b", bundle_of({"one"}, "14.2"));
  expect_found(store_at(bundle, ""), "one", 1);
  const auto none = CubinStore({bundle, ""}, {version, compile}).find("one", "sm_90a", 12080);
  EXPECT_EQ(none.status().message(),
            "no machine code for this kernel: the kernel bundle's compiler of CUDA 14.2 is newer "
            "than the driver, which supports up to CUDA 12.8; NVRTC of CUDA 13.0 is newer than the "
            "driver, which supports up to CUDA 12.8");
}

TEST(CubinStore, ForeignBundleIsNamedAndDoneWithout) {
  const ScratchFolder folder;
  const struct {
    std::string bytes, words;
  } cases[] = {{"", "is not a bundle"},
               {"\x7f"
                "ELF and so on\n",
                "is not a bundle"},
               {"tilewise bundle 2 h 0 d\n", "is not a bundle"},
               {"tilewise bundle 1 h 18446744073709551616 d\n", "is not a bundle"},
               {"tilewise bundle 1 " + headers_digest() + " 99999999999 d\n", "is cut short"},
               {bundle_bytes("another", {}), "was made by another version"}};
  for (const auto& c : cases) {
    const CubinStore store = store_at(folder.write("b", c.bytes), "");
    EXPECT_NE(store.bundle().status().message().find(c.words), std::string::npos)
        << store.bundle().status().message();
    expect_found(store, "one", 1);
  }
  expect_found(store_at(folder / "", ""), "one", 1);  // a folder
}

// Every byte changed, and every length cut: the kernel is found whole or compiled again.
TEST(CubinStore, DamagedBundleNeverGivesDamagedCode) {
  const ScratchFolder folder;
  const std::string whole = bundle_of({"one", "two"});
  const auto expect_sound = [&](const std::string& bytes) {
    const CubinStore store = store_at(folder.write("b", bytes), "");
    for (const char* source : {"one", "two"}) {
      const auto cubin = store.find(source, "sm_90a", kDriver);
      ASSERT_TRUE(cubin.ok()) << cubin.status().message();
      ASSERT_EQ(cubin->code, code_of(source));
    }
  };
  const std::size_t head = whole.find("machine code");
  for (std::size_t i = 0; i < whole.size(); i += i < head ? 1 : 97) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x11);
    expect_sound(damaged);
    expect_sound(whole.substr(0, i));
  }
}

TEST(CubinStore, DamagedOrForeignCacheEntryIsCompiledAgain) {
  const ScratchFolder folder;
  const CubinStore store = store_at("", folder / "");
  expect_found(store, "one", 1);
  ASSERT_EQ(folder.list().size(), 1u);
  const std::string name = folder.list()[0], whole = folder.read(name);
  for (std::size_t i = 0; i < whole.size(); i += i < 200 ? 1 : 997) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x11);
    folder.write(name, damaged);
    expect_found(store, "one", 1);
    folder.write(name, whole.substr(0, i));
    expect_found(store, "one", 1);
  }
  EXPECT_EQ(folder.read(name), whole);
  EXPECT_EQ(folder.list().size(), 1u);  // no draft stays behind
}

TEST(CubinStore, KeyedByCompilerArchitectureAndSource) {
  const ScratchFolder folder;
  expect_found(store_at("", folder / ""), "one", 1);
  const Compiler newer{[] { return Expected<std::string>(std::string("13.1")); }, compile};
  expect_found(CubinStore({"", folder / ""}, newer), "one", 1);
  const int before = compilations;
  ASSERT_TRUE(store_at("", folder / "").find("one", "sm_100a", kDriver).ok());
  EXPECT_EQ(compilations - before, 1);
  EXPECT_EQ(folder.list().size(), 3u);
}

TEST(CubinStore, CacheThatCanNotBeWrittenIsDoneWithout) {
  const ScratchFolder folder;
  folder.write("file", "");
  for (const std::string& cache :
       {folder / "file", folder / "file/below", std::string("/proc/tilewise"), std::string()}) {
    expect_found(store_at("", cache), "one", 1);
    expect_found(store_at("", cache), "one", 1);
  }
  EXPECT_EQ(folder.list().size(), 1u);
}

// A full disk: no file of this process may pass 1 KiB.
TEST(CubinStore, FullDiskOnlyCostsTheCache) {
  const ScratchFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{1024, 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    const CubinStore store = store_at("", folder / "");
    const int before = compilations;
    bool well = true;
    for (int i = 0; i < 2; ++i) {
      const auto cubin = store.find("one", "sm_90a", kDriver);
      well = well && cubin.ok() && cubin->code == code_of("one");
    }
    _exit(well && compilations - before == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(folder.list().empty());
}

TEST(CubinStoreThreads, ThreadsAndProcessesShareACache) {
  const ScratchFolder folder;
  const auto work = [&] {
    std::vector<std::thread> threads;
    std::atomic<bool> good{true};
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) {
          const std::string source = fmt::format("kernel {}", i % 5);
          const auto cubin = store_at("", folder / "").find(source, "sm_90a", kDriver);
          if (!cubin.ok() || cubin->code != code_of(source)) good = false;
        }
      });
    for (std::thread& t : threads) t.join();
    return good.load();
  };
  std::vector<pid_t> children;
#if !defined(__has_feature)  // TSan dislikes threads after fork
  for (int i = 0; i < 3; ++i) {
    children.push_back(fork());
    if (children.back() == 0) _exit(work() ? 0 : 1);
  }
#endif
  EXPECT_TRUE(work());
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(folder.list().size(), 5u);
}

}  // namespace
}  // namespace tilewise::cuda
