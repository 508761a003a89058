// Tells on stderr what takes long: silent for two seconds, then a line that is rewritten on a
// terminal and repeated now and then elsewhere.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace tilewise::tools {

class Progress {
 public:
  // `total` 0: nothing to count.
  explicit Progress(std::string what, std::int64_t total = 0);
  ~Progress();
  Progress(const Progress&) = delete;

  void advance() { ++done_; }

 private:
  void tell();

  std::string what_;
  std::int64_t total_;
  std::atomic<std::int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
  bool stop_ = false;
  std::thread teller_;
};

}  // namespace tilewise::tools
