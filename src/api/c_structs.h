// From the structs of tilewise.h to those of the C++ face. Reading one checks its size first: a
// smaller, older struct keeps the defaults for what it lacks, a larger, newer one must be zero
// where this library knows no field. Whether the values make a sensible problem is validation's
// question.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/format.h"
#include "core/invalid.h"
#include "tilewise/tilewise.h"
#include "tilewise/tilewise.hpp"

namespace tilewise {

// No struct of ours is near this; a larger size is an uninitialized field, not a newer header.
inline constexpr std::size_t kMaxStructBytes = 4096;

inline Status check_struct_size(const char* name, std::size_t given, std::size_t known) {
  if (given >= sizeof(std::size_t) && given <= kMaxStructBytes && given % alignof(double) == 0)
    return {};
  return invalid(
      format_text("{}: struct_size is {}; set it to sizeof({}), {} here (its _init() does)", name,
                  given, name, known));
}

// Copies `given` over `known`, which holds the defaults.
template <class T>
Status read_struct(const char* name, const T* given, T& known) {
  if (!given) return invalid(format_text("{}: the pointer is null", name));
  const std::size_t size = given->struct_size;
  if (Status s = check_struct_size(name, size, sizeof(T)); !s.ok()) return s;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T) &&
      !std::all_of(bytes + sizeof(T), bytes + size, [](auto b) { return b == 0; }))
    return invalid(format_text(
        "{}: struct_size is {}, and a field past the {} bytes that this library ({}) knows is not "
        "zero; use a newer library or leave that field zero",
        name, size, sizeof(T), TW_VERSION));
  std::memcpy(&known, given, std::min(size, sizeof(T)));
  known.struct_size = sizeof(T);
  return {};
}

Expected<Problem> read_problem(const tw_problem* given);
Expected<Options> read_options(const tw_options* given);  // null: the defaults
Expected<Device> read_device(std::int32_t kind, std::int32_t index);
Expected<Inputs> read_inputs(const tw_inputs* given);
Expected<Outputs> read_outputs(const tw_outputs* given);
Expected<Gradients> read_gradients(const tw_gradients* given);
Expected<Launch> read_launch(const tw_launch* given);  // null: no workspace

}  // namespace tilewise
