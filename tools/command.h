// What main() and the subcommands agree on: each adds itself to the parser and, when it is the one
// that was called, leaves its work in `run`.
#pragma once

#include <functional>

#include "tilewise/status.hpp"

namespace CLI {
class App;
}

namespace tilewise::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailedCheck = 1;
inline constexpr int kExitBadUse = 2;  // bad use, bad input, or a device that is not there

using Run = std::function<int()>;

void add_attend(CLI::App& app, Run& run);
void add_grad(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_info(CLI::App& app, Run& run);
void add_check(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_compile(CLI::App& app, Run& run);
void add_demo(CLI::App& app, Run& run);

// Prints "tilewise SUBCOMMAND: message" on stderr. Returns kExitBadUse.
int fail(const char* subcommand, const Status& status);

}  // namespace tilewise::tools
