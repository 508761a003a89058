// NumPy's .npy, versions 1.0, 2.0 and 3.0: a magic, a header that is a Python dict literal, and one
// array. https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <string>

#include "io/atomic_file.h"
#include "io/payload.h"

namespace tilewise::io {

// Where the array lies and what it is. Every lie of the header about the source's size is an error
// here: too short as well as too long.
Expected<Payload> parse_npy(const Source& source);

Expected<HostTensor> read_npy(const Source& source, Role role);

// A dense tensor. .npy has no bf16, and f16 is rarely wanted outside: 16-bit numbers become
// float32.
Status write_npy(AtomicFile& file, const Tensor& tensor);

}  // namespace tilewise::io
