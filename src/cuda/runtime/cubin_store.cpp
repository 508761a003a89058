#include "cuda/runtime/cubin_store.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/environment.h"
#include "core/format.h"
#include "cuda/runtime/device_sources.h"
#include "cuda/runtime/digest.h"

namespace tilewise::cuda {
namespace {

namespace fs = std::filesystem;

std::string read_entry(const fs::path& path, const std::string& title) {
  std::ifstream file(path, std::ios::binary);
  std::string line, digest;
  if (!std::getline(file, line) || line != title || !std::getline(file, digest)) return {};
  std::ostringstream rest;
  rest << file.rdbuf();
  return digest_of(rest.str()) == digest ? rest.str() : std::string();
}

void write_entry(const fs::path& path, const std::string& title, const std::string& cubin) {
  static std::atomic<unsigned> drafts{0};  // threads of one process write the same entry, too
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path draft = format_text("{}.{}.{}.new", path.string(), getpid(), drafts++);
  bool written = false;
  {
    std::ofstream file(draft, std::ios::binary);
    file << title << '\n' << digest_of(cubin) << '\n' << cubin;
    written = static_cast<bool>(file.flush());
  }
  if (written) fs::rename(draft, path, error);
  if (!written || error) fs::remove(draft, error);
}

// "13.0" to 13: kernels of one major version run on every driver of that version.
int major_of(const std::string& version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

bool too_new(const std::string& compiler, int driver_version) {
  return driver_version > 0 && major_of(compiler) > driver_version / 1000;
}

Status too_new_for(const std::string& what, const std::string& compiler, int driver_version) {
  return {StatusCode::kUnavailable,
          format_text("{} of CUDA {} is newer than the driver, which supports up to CUDA {}.{}",
                      what, compiler, driver_version / 1000, driver_version % 1000 / 10)};
}

// The folder of the file that holds this code: libtilewise, or the program that it is linked into.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&device_sources), &info) || !info.dli_fname) return {};
  std::error_code error;
  const fs::path whole = fs::canonical(info.dli_fname, error);
  return error ? std::string() : whole.parent_path().string();
}

std::string cache_directory() {
  if (const char* const own = environment("TILEWISE_CACHE")) return own;
  if (const char* const user = environment("XDG_CACHE_HOME"))
    return (fs::path(user) / "tilewise").string();
  if (const char* const home = environment("HOME"))
    return (fs::path(home) / ".cache" / "tilewise").string();
  return {};
}

Expected<Bundle> open_bundle(const std::string& path) {
  if (path.empty()) return Status(StatusCode::kUnavailable, "there is no kernel bundle");
  return Bundle::open(path, headers_digest());
}

}  // namespace

const std::string& headers_digest() {
  static const std::string digest = [] {
    Digest d;
    for (const DeviceSource& header : device_sources()) {
      d.add(header.name);
      d.add(header.text);
    }
    return d.hex();
  }();
  return digest;
}

std::string cubin_key(const std::string& source, const std::string& arch) {
  Digest d;
  d.add(arch);
  d.add(headers_digest());
  d.add(source);
  return d.hex();
}

StorePaths store_paths() {
  StorePaths paths;
  paths.cache = cache_directory();
  if (const char* const own = environment("TILEWISE_BUNDLE"))
    paths.bundle = own;
  else if (const std::string folder = own_folder(); !folder.empty())
    paths.bundle = (fs::path(folder) / "tilewise.bundle").string();
  return paths;
}

CubinStore::CubinStore(const StorePaths& paths, const Compiler& compiler)
    : bundle_(open_bundle(paths.bundle)), cache_(paths.cache), compiler_(compiler) {}

Expected<Cubin> CubinStore::find_in_bundle(const std::string& key, int driver_version) const {
  if (!bundle_.ok()) return bundle_.status();
  auto cubin = bundle_->find(key);
  if (cubin.ok() && too_new(cubin->compiler, driver_version))
    return too_new_for("the kernel bundle's compiler", cubin->compiler, driver_version);
  return cubin;
}

Expected<Cubin> CubinStore::find(const std::string& source, const std::string& arch,
                                 int driver_version) const {
  const std::string key = cubin_key(source, arch);
  auto bundled = find_in_bundle(key, driver_version);
  if (bundled.ok()) return bundled;
  const auto compiler = compiler_.version();
  Status refused = compiler.status();
  if (compiler.ok() && too_new(*compiler, driver_version))
    refused = too_new_for("NVRTC", *compiler, driver_version);
  if (!refused.ok())
    return Status(StatusCode::kUnavailable,
                  format_text("no machine code for this kernel: {}; {}", bundled.status().message(),
                              refused.message()));
  const std::string title = format_text("tilewise cubin 2 {} {} {}", arch, *compiler, key);
  const fs::path entry = fs::path(cache_) / (digest_of(title) + ".cubin");
  if (!cache_.empty())
    if (std::string code = read_entry(entry, title); !code.empty())
      return Cubin{std::move(code), *compiler};
  auto compiled = compiler_.compile(source, arch);
  if (!compiled.ok()) return compiled.status();
  if (!cache_.empty()) write_entry(entry, title, compiled->cubin);
  return Cubin{std::move(compiled->cubin), *compiler};
}

const CubinStore& cubin_store() {
  static const CubinStore store(store_paths());
  return store;
}

}  // namespace tilewise::cuda
