// Source: the bytes that a reader parses, from a file or from memory (a fuzzer's). A file is read,
// not mapped: when somebody cuts it short meanwhile, that is an error here and not a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tilewise/status.hpp"

namespace tilewise::io {

class Source {
 public:
  // Errors (kInvalidArgument, with the path and the system's reason): not there, not readable, not
  // a regular file.
  static Expected<Source> open(const std::string& path);

  // Views `bytes`, which must outlive the source.
  Source(std::span<const std::byte> bytes, std::string name);

  Source(Source&& other) noexcept;
  Source& operator=(Source&&) = delete;
  ~Source();

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }

  // All of [offset, offset + count), or an error.
  Status read(std::uint64_t offset, void* to, std::uint64_t count) const;

  // kInvalidArgument with the name in front of `problem`.
  Status bad(const std::string& problem) const;

 private:
  Source(std::string name, int fd, std::uint64_t size)
      : name_(std::move(name)), fd_(fd), size_(size) {}

  std::string name_;
  int fd_ = -1;  // -1: memory
  const std::byte* memory_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace tilewise::io
