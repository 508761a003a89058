// What `tilewise check` found, printed as it comes: words, or one JSON object a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tilewise::tools {

// What one kernel on one tier did with one problem.
struct CheckOutcome {
  std::string problem, kernel, isa;
  std::vector<std::string> figures;   // a line for each tensor compared
  std::vector<std::string> failures;  // empty: passed
};

class CheckLog {
 public:
  enum class Style { kText, kJson };
  enum class Detail { kEverything, kFailuresOnly };

  // `seed` is what makes the random tensors again.
  CheckLog(Style style, std::uint64_t seed);

  void add(const CheckOutcome& outcome, Detail detail);
  void add_unsupported() { ++unsupported_; }
  void finish() const;
  // Nothing compared is no success.
  bool failed() const { return failed_ > 0 || passed_ == 0; }

 private:
  Style style_;
  std::uint64_t seed_;
  std::int64_t passed_ = 0, failed_ = 0, unsupported_ = 0;
};

}  // namespace tilewise::tools
