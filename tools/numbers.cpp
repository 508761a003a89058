// See numbers.h.
#include "numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace tilewise::tools {
namespace {

template <class T>
bool parses(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

}  // namespace

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    if (parses(text, value) && value >= least && value <= most) return {};
    return fmt::format("\"{}\" is not accepted; accepted: a whole number from {} to {}", text,
                       least, most);
  };
  return CLI::Validator(check, "");
}

CLI::Validator real_number() {
  const auto check = [](const std::string& text) -> std::string {
    float value = 0;
    if (parses(text, value)) return {};
    return fmt::format("\"{}\" is not accepted; accepted: a number", text);
  };
  return CLI::Validator(check, "");
}

}  // namespace tilewise::tools
