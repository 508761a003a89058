// A tensor named on a command line: FILE.npy or FILE.safetensors:NAME.
#pragma once

#include <span>
#include <string>

#include "io/host_tensor.h"
#include "io/payload.h"

namespace tilewise::io {

struct TensorPath {
  std::string file;
  std::string name;  // empty: .npy
};

Expected<TensorPath> parse_tensor_path(const std::string& text);

Expected<HostTensor> read_tensor(const std::string& path, Role role);

struct Output {
  std::string path;  // FILE.npy or FILE.safetensors:NAME
  Tensor tensor;     // dense
};

// Finds what would make write_tensors fail before hours are spent on computing: a path that is
// neither format, two outputs at one place, a folder that can't be written.
Status check_outputs(std::span<const std::string> paths);

// Refuses an output that would replace a file from which an input is read: a .safetensors file is
// written whole, so its other tensors would be gone. Empty inputs are skipped.
Status check_keeps_inputs(std::span<const std::string> outputs,
                          std::span<const std::string> inputs);

// Writes all or, on an error, none: each file under a temporary name first, then every rename.
// Outputs that name one .safetensors file become that one file; an old file is replaced.
Status write_tensors(std::span<const Output> outputs);

}  // namespace tilewise::io
