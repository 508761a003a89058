#include "cuda/runtime/nvrtc.h"

#include <vector>

#include "core/environment.h"
#include "core/format.h"
#include "cuda/runtime/device_sources.h"
#include "cuda/runtime/library.h"

namespace tilewise::cuda {
namespace {

using Program = struct ProgramOpaque*;
using Result = int;

struct Nvrtc {
  Result (*version)(int* major, int* minor);
  Result (*create)(Program*, const char* source, const char* name, int headers,
                   const char* const* texts, const char* const* names);
  Result (*destroy)(Program*);
  Result (*compile)(Program, int count, const char* const* options);
  Result (*log_size)(Program, std::size_t*);
  Result (*log)(Program, char*);
  Result (*cubin_size)(Program, std::size_t*);
  Result (*cubin)(Program, char*);
};

Expected<Nvrtc> load() {
  const auto library =
      Library::open({environment("TILEWISE_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12",
                     "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"});
  if (!library.ok())
    return Status(StatusCode::kUnavailable,
                  format_text("NVRTC is not on this machine ({}); install it (PyPI: "
                              "nvidia-cuda-nvrtc) or set TILEWISE_NVRTC to its path",
                              library.status().message()));
  Nvrtc n{};
  if (library->find("nvrtcVersion", n.version) && library->find("nvrtcCreateProgram", n.create) &&
      library->find("nvrtcDestroyProgram", n.destroy) &&
      library->find("nvrtcCompileProgram", n.compile) &&
      library->find("nvrtcGetProgramLogSize", n.log_size) &&
      library->find("nvrtcGetProgramLog", n.log) &&
      library->find("nvrtcGetCUBINSize", n.cubin_size) && library->find("nvrtcGetCUBIN", n.cubin))
    return n;
  return Status(StatusCode::kUnavailable,
                format_text("{} lacks functions of NVRTC 12", library->name()));
}

const Expected<Nvrtc>& nvrtc() {
  static const Expected<Nvrtc> loaded = load();
  return loaded;
}

template <class Size, class Get>
std::string fetch(Program program, Size size, Get get) {
  std::size_t bytes = 0;
  if (size(program, &bytes) != 0 || bytes == 0) return {};
  std::string out(bytes, '\0');
  if (get(program, out.data()) != 0) return {};
  return out;
}

Program create_program(const Nvrtc& n, const std::string& source) {
  std::vector<const char*> texts, names;
  for (const DeviceSource& header : device_sources()) {
    texts.push_back(header.text);
    names.push_back(header.name);
  }
  Program program = nullptr;
  n.create(&program, source.c_str(), "tilewise_kernel.cu", static_cast<int>(names.size()),
           texts.data(), names.data());
  return program;
}

}  // namespace

Expected<std::string> nvrtc_version() {
  if (!nvrtc().ok()) return nvrtc().status();
  int major = 0, minor = 0;
  nvrtc()->version(&major, &minor);
  return format_text("{}.{}", major, minor);
}

Expected<Compiled> nvrtc_compile(const std::string& source, const std::string& arch) {
  if (!nvrtc().ok()) return nvrtc().status();
  const Nvrtc& n = *nvrtc();
  Program program = create_program(n, source);
  if (!program) return Status(StatusCode::kInternal, "NVRTC did not take the program");
  const std::string target = "--gpu-architecture=" + arch;
  const char* const options[] = {target.c_str(), "--std=c++20", "--ptxas-options=-v"};
  const Result result = n.compile(program, 3, options);
  Compiled out;
  out.log = fetch(program, n.log_size, n.log);
  if (result == 0) out.cubin = fetch(program, n.cubin_size, n.cubin);
  n.destroy(&program);
  if (out.cubin.empty())
    return Status(StatusCode::kInternal,
                  format_text("NVRTC could not compile a kernel for {}: {}", arch, out.log));
  return out;
}

}  // namespace tilewise::cuda
