// `tilewise compile`: GPU kernels compiled ahead of time into a bundle. Needs NVRTC, no GPU.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "cuda/catalog.h"
#include "cuda/runtime/cubin_store.h"
#include "io/atomic_file.h"
#include "load.h"
#include "numbers.h"
#include "progress.h"
#include "report.h"

namespace tilewise::tools {
namespace {

struct Flags {
  ProblemFlags problem;
  std::string arch = "sm_90a";
  std::vector<std::string> rows = {"all"};
  std::string out;
  int threads = 0;
  bool list = false, json = false;
};

// True if every word of `wanted`, such as "d128 bf16", is a word of the kernel's name.
bool has_words(const std::string& name, const std::string& wanted) {
  for (std::size_t at = 0; at < wanted.size();) {
    const std::size_t end = std::min(wanted.find(' ', at), wanted.size());
    const std::string word = " " + wanted.substr(at, end - at) + " ";
    if (word.size() > 2 && (" " + name + " ").find(word) == std::string::npos) return false;
    at = end + 1;
  }
  return true;
}

Expected<std::vector<cuda::KernelSource>> chosen(const Flags& f) {
  const SizeFlags& z = f.problem.sizes;
  if (z.seq_q >= 0 || !f.problem.tensors.q.empty()) {
    const Expected<Loaded> loaded = load_problem(f.problem);
    if (!loaded.ok()) return loaded.status();
    const Expected<Plan> plan = make_plan(loaded->problem, {Device::Kind::kCuda, 0});
    if (!plan.ok()) return plan.status();
    return cuda::kernels_of(plan->problem, plan->options);
  }
  std::vector<cuda::KernelSource> kernels = cuda::usual_kernels();
  const auto unwanted = [&](const cuda::KernelSource& kernel) {
    return std::none_of(f.rows.begin(), f.rows.end(), [&](const std::string& row) {
      return row == "all" || has_words(kernel.name, row);
    });
  };
  kernels.erase(std::remove_if(kernels.begin(), kernels.end(), unwanted), kernels.end());
  if (!kernels.empty()) return kernels;
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("--rows {} matches no kernel; accepted: all, or words of the names that "
                  "--list prints",
                  fmt::join(f.rows, ",")));
}

// NVRTC compiles one kernel at a time in a process, so processes do it: each takes every n-th
// kernel into the cache and tells through the pipe. What goes wrong there shows when the cache is
// read.
class Workers {
 public:
  Workers(const std::vector<cuda::KernelSource>& kernels, const Flags& f,
          const cuda::CubinStore& store) {
    int ends[2];
    if (pipe(ends) != 0) return;
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const std::size_t count = f.threads ? static_cast<std::size_t>(f.threads) : cores;
    for (std::size_t w = 0; w < std::min(count, kernels.size()); ++w) {
      const pid_t child = fork();
      if (child < 0) break;
      if (child > 0) {
        children_.push_back(child);
        continue;
      }
      bool well = true;
      for (std::size_t i = w; i < kernels.size() && well; i += count) {
        well = store.find(kernels[i].source, f.arch, 0).ok();
        well = ::write(ends[1], "", 1) == 1 && well;
      }
      _exit(0);
    }
    close(ends[1]);
    done_ = ends[0];
  }
  ~Workers() {
    if (done_ >= 0) close(done_);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
  }
  Workers(const Workers&) = delete;

  // Until all are at their end.
  void wait(Progress& progress) const {
    char byte;
    while (done_ >= 0 && ::read(done_, &byte, 1) == 1) progress.advance();
  }

 private:
  std::vector<pid_t> children_;
  int done_ = -1;
};

// The first failure ends it. What the user's cache has is taken from there.
Expected<std::vector<cuda::BundleEntry>> compile_all(const std::vector<cuda::KernelSource>& kernels,
                                                     const Flags& f) {
  const cuda::CubinStore store({"", cuda::store_paths().cache});
  {
    const Workers workers(kernels, f, store);
    Progress progress("compile", static_cast<std::int64_t>(kernels.size()));
    workers.wait(progress);
  }
  std::vector<cuda::BundleEntry> entries;
  for (const cuda::KernelSource& kernel : kernels) {
    auto cubin = store.find(kernel.source, f.arch, 0);
    if (!cubin.ok()) return cubin.status();
    entries.push_back({cuda::cubin_key(kernel.source, f.arch), f.arch, std::move(*cubin)});
  }
  return entries;
}

Status compile(const Flags& f) {
  if (f.arch != "sm_90a")
    return {StatusCode::kUnsupported,
            fmt::format("--arch is {}; accepted: sm_90a (Hopper)", f.arch)};
  const auto kernels = chosen(f);
  if (!kernels.ok()) return kernels.status();
  if (f.list) {
    for (const cuda::KernelSource& kernel : *kernels) fmt::print("{}\n", kernel.name);
    return {};
  }
  if (f.out.empty())
    return {StatusCode::kInvalidArgument, "--out is missing; accepted: the bundle to write"};
  Expected<io::AtomicFile> file = io::AtomicFile::create(f.out);  // first, the rest takes minutes
  if (!file.ok()) return file.status();
  const auto start = std::chrono::steady_clock::now();
  auto entries = compile_all(*kernels, f);
  if (!entries.ok()) return entries.status();
  const std::string compiler = entries->front().cubin.compiler;
  const std::string bytes = cuda::bundle_bytes(cuda::headers_digest(), std::move(*entries));
  Status s = file->write(bytes.data(), bytes.size());
  if (s.ok()) s = file->flush();
  if (s.ok()) s = file->commit();
  if (!s.ok()) return s;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (f.json) {
    const nlohmann::ordered_json line = {
        {"path", f.out},         {"arch", f.arch},    {"kernels", kernels->size()},
        {"bytes", bytes.size()}, {"nvrtc", compiler}, {"seconds", seconds.count()}};
    fmt::print("{}\n", line.dump(2));
  } else {
    fmt::print("{}  {} kernel{} for {}, {}, by NVRTC {} in {:.1f} s\n", f.out, kernels->size(),
               kernels->size() == 1 ? "" : "s", f.arch,
               bytes_text(static_cast<double>(bytes.size())), compiler, seconds.count());
  }
  return {};
}

}  // namespace

void add_compile(CLI::App& app, Run& run) {
  CLI::App* sub = app.add_subcommand("compile", "GPU kernels ahead of time, into a bundle");
  const auto f = std::make_shared<Flags>();
  constexpr const char* kGroup = "Compile";
  sub->add_option("--arch", f->arch, "default sm_90a, Hopper")->type_name("ARCH")->group(kGroup);
  sub->add_option(
         "--rows", f->rows,
         "all (default), or kernels whose names have these words: \"d128 bf16,d64 causal\"")
      ->delimiter(',')
      ->type_name("WORDS,...")
      ->group(kGroup);
  sub->add_option("-o,--out", f->out, "the bundle")->type_name("FILE")->group(kGroup);
  sub->add_option("--threads", f->threads, "processes that compile; default all cores")
      ->check(whole_number())
      ->type_name("N")
      ->group(kGroup);
  sub->add_flag("--list", f->list, "print the kernels' names and compile nothing")->group(kGroup);
  sub->add_flag("--json", f->json, "print JSON")->group(kGroup);
  add_problem_flags(*sub, f->problem, From::kTensorsOrSizes);
  sub->footer(
      "With sizes (from --seq-q on) or tensors: the kernels of that one problem. Needs NVRTC, no "
      "GPU. The\n"
      "library looks for a bundle in TILEWISE_BUNDLE, else for tilewise.bundle beside itself, then "
      "in its\n"
      "cache, and compiles what neither has.\n\n"
      "Example:\n"
      "  tilewise compile --arch sm_90a --rows \"d128 bf16\" -o tilewise.bundle");
  sub->callback([f, &run] {
    run = [f] {
      const Status s = compile(*f);
      return s.ok() ? kExitOk : fail("compile", s);
    };
  });
}

}  // namespace tilewise::tools
