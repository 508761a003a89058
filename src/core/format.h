// fmt::format, compiled once. fmt is used header-only; its formatters in every file would be half
// of what a build takes.
#pragma once

#include <fmt/core.h>

#include <string>

namespace tilewise {

std::string format_arguments(fmt::string_view text, fmt::format_args arguments);

// As fmt::format, the text checked when it is compiled.
template <class... T>
std::string format_text(fmt::format_string<T...> text, T&&... arguments) {
  return format_arguments(text, fmt::make_format_args(arguments...));
}

// The items of a range, with commas between them.
template <class Range>
std::string comma_separated(const Range& items) {
  std::string out;
  for (const auto& item : items) out += format_text("{}{}", out.empty() ? "" : ", ", item);
  return out;
}

}  // namespace tilewise
