// Starts the built `tilewise` command in a folder and keeps what it said.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "support/scratch_folder.h"

namespace tilewise::test {

struct Said {
  int exit_code = -1;  // -1: it did not exit by itself
  std::string out, err;
};

// `words` are passed as they are, no shell takes them apart. Paths are relative to `folder`.
inline Said run_command(const ScratchFolder& folder, const std::vector<std::string>& words) {
  const ScratchFolder log;
  std::string line = "cd '" + (folder / "") + "' && '" TILEWISE_COMMAND "'";
  for (const std::string& word : words) line += " '" + word + "'";
  line += " >'" + (log / "out") + "' 2>'" + (log / "err") + "'";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, log.read("out"), log.read("err")};
}

}  // namespace tilewise::test
