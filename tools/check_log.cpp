// See check_log.h.
#include "check_log.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tilewise::tools {

using Json = nlohmann::ordered_json;

CheckLog::CheckLog(Style style, std::uint64_t seed) : style_(style), seed_(seed) {
  if (style_ == Style::kText) fmt::print("input seed {}\n", seed_);
}

void CheckLog::add(const CheckOutcome& o, Detail detail) {
  const bool pass = o.failures.empty();
  ++(pass ? passed_ : failed_);
  if (pass && detail == Detail::kFailuresOnly) return;
  if (style_ == Style::kJson) {
    const Json line = {{"problem", o.problem}, {"kernel", o.kernel},   {"isa", o.isa},
                       {"pass", pass},         {"figures", o.figures}, {"failures", o.failures}};
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("{}  {}  {} on {}\n", pass ? "ok  " : "FAIL", o.problem, o.kernel, o.isa);
    // A tensor that fails is among the figures too: say it once.
    if (pass)
      for (const std::string& figure : o.figures) fmt::print("        {}\n", figure);
    for (const std::string& failure : o.failures) fmt::print("      X {}\n", failure);
  }
  std::fflush(stdout);
}

void CheckLog::finish() const {
  if (style_ == Style::kJson) {
    const Json line = {{"passed", passed_},
                       {"failed", failed_},
                       {"unsupported", unsupported_},
                       {"input_seed", seed_}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("{} passed, {} failed{}; input seed {}\n", passed_, failed_,
             unsupported_ ? fmt::format(", {} without such a kernel", unsupported_) : "", seed_);
}

}  // namespace tilewise::tools
