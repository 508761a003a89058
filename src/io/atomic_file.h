// AtomicFile: a file that appears whole or not at all. It is written under a temporary name in the
// same folder, brought to disk, then renamed; whatever is not committed is deleted.
#pragma once

#include <cstddef>
#include <string>

#include "tilewise/status.hpp"

namespace tilewise::io {

class AtomicFile {
 public:
  // Errors: kInvalidArgument with the path and the system's reason. An existing regular file at
  // `path` stays as it is until commit; a symbolic link is followed.
  static Expected<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status write(const void* data, std::size_t count);

  // Brings the bytes to disk. After this only the rename of commit() can fail, so a caller with
  // several files flushes all before it commits the first.
  Status flush();
  Status commit();

 private:
  AtomicFile() = default;
  Status cannot_write() const;

  std::string path_, temporary_;
  int fd_ = -1;
};

}  // namespace tilewise::io
