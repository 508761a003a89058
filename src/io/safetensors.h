// .safetensors: 8 bytes of header length, a JSON header of names, dtypes, shapes and offsets, then
// the bytes of all tensors without a gap. https://github.com/huggingface/safetensors#format
#pragma once

#include <map>
#include <span>
#include <string>

#include "io/atomic_file.h"
#include "io/payload.h"
#include "io/safetensors_header.h"

namespace tilewise::io {

// Reads and checks the header: see check_layout() for what makes it an error.
Expected<SafetensorsHeader> parse_safetensors(const Source& source);

// One tensor. An unknown dtype or a high rank elsewhere in the file does not matter.
Expected<HostTensor> read_safetensors(const Source& source, const std::string& name, Role role);

struct NamedTensor {
  std::string name;
  Tensor tensor;  // dense
};

Status write_safetensors(AtomicFile& file, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace tilewise::io
