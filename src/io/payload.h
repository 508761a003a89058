// What both file formats have in common: a dense little-endian array at an offset, read into one of
// the library's dtypes. Number arrays take f32, f16, bf16 as they are and f64 rounded to f32; index
// arrays take i32 as it is and i64 when every value fits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/host_tensor.h"
#include "io/source.h"

namespace tilewise::io {

enum class StoredType : std::uint8_t { kF32, kF16, kBF16, kF64, kI32, kI64 };

std::int64_t size_of(StoredType type);
const char* name_of(StoredType type);

// What the caller will use a tensor for.
enum class Role : std::uint8_t { kNumbers, kIndices };

struct Payload {
  StoredType type = StoredType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // from the start of the source
};

// Checks rank, dtype against role and the payload's end against the source's size before it
// allocates. `what` names the tensor in messages.
Expected<HostTensor> read_payload(const Source& source, const Payload& payload, Role role,
                                  const std::string& what);

}  // namespace tilewise::io
