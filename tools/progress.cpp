// See progress.h.
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

namespace tilewise::tools {

Progress::Progress(std::string what, std::int64_t total)
    : what_(std::move(what)), total_(total), teller_([this] { tell(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  finished_.notify_one();
  teller_.join();
}

void Progress::tell() {
  using namespace std::chrono_literals;
  const auto start = std::chrono::steady_clock::now();
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  auto wait = 2s;
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!finished_.wait_for(lock, wait, [this] { return stop_; })) {
    const auto elapsed = std::chrono::steady_clock::now() - start;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(elapsed).count();
    const std::string count = total_ ? fmt::format("{} of {}, ", done_.load(), total_) : "";
    fmt::print(stderr, "{}tilewise: {}: {}{} s{}", terminal ? "\r\x1b[K" : "", what_, count,
               seconds, terminal ? "" : "\n");
    told = true;
    wait = terminal ? 1s : 10s;
  }
  if (told && terminal) fmt::print(stderr, "\r\x1b[K");
}

}  // namespace tilewise::tools
