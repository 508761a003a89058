// The `tilewise` command. Exit codes: 0 ok, 1 a check failed, 2 bad use or bad input.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>

#include "command.h"
#include "tilewise/tilewise.h"

namespace tilewise::tools {

int fail(const char* subcommand, const Status& status) {
  fmt::print(stderr, "tilewise {}: {}\n", subcommand, status.message());
  return kExitBadUse;
}

}  // namespace tilewise::tools

int main(int argc, char** argv) {
  using namespace tilewise::tools;
  CLI::App app("Exact attention, one tile at a time, on tensors in .npy and .safetensors files.",
               "tilewise");
  app.set_version_flag("--version", TW_VERSION);
  app.footer(
      "Each subcommand has --help with an example. Exit codes: 0 ok, 1 a check failed, 2 bad "
      "use or bad input.");
  Run run;
  for (auto* add :
       {add_attend, add_grad, add_plan, add_info, add_check, add_bench, add_compile, add_demo})
    add(app, run);
  try {
    app.parse(argc, argv);
    if (run) return run();
    fmt::print(stderr, "tilewise: a subcommand is missing\n\n{}", app.help());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitBadUse;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tilewise: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "tilewise: {}\n", error.what());
  }
  return kExitBadUse;
}
