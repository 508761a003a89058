#include "cuda/runtime/cubin_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/environment.h"
#include "cuda/runtime/device_sources.h"
#include "cuda/runtime/nvrtc.h"

namespace tilewise::cuda {
namespace {

namespace fs = std::filesystem;

// FNV-1a, twice from different starts: 128 bits against collisions by accident.
struct Digest {
  std::uint64_t a = 0xCBF29CE484222325u, b = 0x6C62272E07BB0142u;
  void add(std::string_view text) {
    for (const unsigned char c : text) {
      a = (a ^ c) * 0x100000001B3u;
      b = (b ^ (c + 0x9Eu)) * 0x100000001B3u;
    }
    a = (a ^ text.size()) * 0x100000001B3u;
  }
  std::string hex() const { return fmt::format("{:016x}{:016x}", a, b); }
};

std::string digest_of(std::string_view text) {
  Digest d;
  d.add(text);
  return d.hex();
}

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

// The first line of an entry; its payload's digest is the second.
std::string title_of(const std::string& source, const std::string& arch,
                     const std::string& compiler) {
  return fmt::format("tilewise cubin 1 {} {} {} {}", arch, compiler, headers_digest(),
                     digest_of(source));
}

std::string read_entry(const fs::path& path, const std::string& title) {
  std::ifstream file(path, std::ios::binary);
  std::string line, digest;
  if (!std::getline(file, line) || line != title || !std::getline(file, digest)) return {};
  std::ostringstream rest;
  rest << file.rdbuf();
  return digest_of(rest.str()) == digest ? rest.str() : std::string();
}

void write_entry(const fs::path& path, const std::string& title, const std::string& cubin) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path draft = fmt::format("{}.{}.new", path.string(), getpid());
  {
    std::ofstream file(draft, std::ios::binary);
    file << title << '\n' << digest_of(cubin) << '\n' << cubin;
    if (!file.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(draft, path, error);
  if (error) fs::remove(draft, error);
}

}  // namespace

std::string cache_directory() {
  if (const char* const own = environment("TILEWISE_CACHE")) return own;
  if (const char* const user = environment("XDG_CACHE_HOME"))
    return (fs::path(user) / "tilewise").string();
  if (const char* const home = environment("HOME"))
    return (fs::path(home) / ".cache" / "tilewise").string();
  return {};
}

Expected<std::string> cubin_for(const std::string& source, const std::string& arch) {
  const auto compiler = nvrtc_version();
  const std::string title = title_of(source, arch, compiler.ok() ? *compiler : "none");
  const std::string directory = cache_directory();
  const fs::path entry = fs::path(directory) / (digest_of(title) + ".cubin");
  if (!directory.empty())
    if (std::string cubin = read_entry(entry, title); !cubin.empty()) return cubin;
  auto compiled = nvrtc_compile(source, arch);
  if (!compiled.ok()) return compiled.status();
  if (!directory.empty()) write_entry(entry, title, compiled->cubin);
  return std::move(compiled->cubin);
}

}  // namespace tilewise::cuda
