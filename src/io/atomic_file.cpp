// AtomicFile over POSIX calls.
#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tilewise::io {
namespace {

Status refuse(const std::string& path, const char* why) {
  return {
      StatusCode::kInvalidArgument,
      fmt::format("{}: can't be written: {}; a file in a writable folder is accepted", path, why)};
}

}  // namespace

Expected<AtomicFile> AtomicFile::create(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored, error;
  const fs::file_status target = fs::status(path, ignored);  // not there yet: fine
  if (fs::exists(target) && !fs::is_regular_file(target))
    return refuse(path,
                  fs::is_directory(target) ? "it is a directory" : "it is not a regular file");
  AtomicFile file;
  file.path_ = fs::exists(target) ? fs::canonical(path, error).string() : path;
  if (error) return refuse(path, error.message().c_str());
  static std::atomic<unsigned> counter{0};
  do {
    file.temporary_ = fmt::format("{}.{}.{}.tmp", file.path_, ::getpid(), counter++);
    file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file.fd_ < 0 && errno == EEXIST);
  if (file.fd_ < 0) return refuse(path, std::strerror(errno));
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::cannot_write() const {
  return refuse(path_, std::strerror(errno));
}

Status AtomicFile::write(const void* data, std::size_t count) {
  const auto* from = static_cast<const std::byte*>(data);
  while (count) {
    const ssize_t done = ::write(fd_, from, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return cannot_write();
    from += done;
    count -= static_cast<std::size_t>(done);
  }
  return {};
}

Status AtomicFile::flush() {
  return ::fsync(fd_) == 0 ? Status() : cannot_write();
}

Status AtomicFile::commit() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return cannot_write();
  temporary_.clear();
  // The new name is on disk once the folder is; where folders can't be synced, nothing is lost.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int dir = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
  return {};
}

}  // namespace tilewise::io
