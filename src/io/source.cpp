// Source over a file descriptor or a span.
#include "io/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tilewise::io {
namespace {

Status cannot_read(const std::string& path, const char* why) {
  return {StatusCode::kInvalidArgument,
          fmt::format("{}: can't be read: {}; a readable regular file is accepted", path, why)};
}

}  // namespace

Expected<Source> Source::open(const std::string& path) {
  // Non-blocking, or opening a pipe would wait for its writer; regular files don't care.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return cannot_read(path, std::strerror(errno));
  Source source(path, fd, 0);
  struct stat info {};
  if (::fstat(fd, &info) != 0) return cannot_read(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return cannot_read(path,
                       S_ISDIR(info.st_mode) ? "it is a directory" : "it is a pipe or device");
  source.size_ = static_cast<std::uint64_t>(info.st_size);
  return source;
}

Source::Source(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)), memory_(bytes.data()), size_(bytes.size()) {}

Source::Source(Source&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      memory_(other.memory_),
      size_(other.size_) {}

Source::~Source() {
  if (fd_ >= 0) ::close(fd_);
}

Status Source::bad(const std::string& problem) const {
  return {StatusCode::kInvalidArgument, fmt::format("{}: {}", name_, problem)};
}

Status Source::read(std::uint64_t offset, void* to, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset)
    return bad(fmt::format("truncated: bytes {} to {} are needed, the file has {}", offset,
                           offset + count, size_));
  if (fd_ < 0) {
    if (count) std::memcpy(to, memory_ + offset, count);
    return {};
  }
  auto* out = static_cast<std::byte*>(to);
  while (count) {
    const ssize_t got = ::pread(fd_, out, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_read(name_, std::strerror(errno));
    if (got == 0) return bad("was cut short while it was read");
    out += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace tilewise::io
