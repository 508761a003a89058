// A parser of just the Python that NumPy writes; it never recurses, so no header can make it deep.
#include "io/npy_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace tilewise::io {
namespace {

constexpr std::size_t kMaxExtents = 64;  // NumPy's own limit on the rank

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Expected<NpyHeader> header() {
    if (!take('{')) return fail("'{'");
    while (!take('}')) {
      std::string key;
      if (!string(key)) return fail("a key in quotes");
      if (!take(':')) return fail("':'");
      if (Status s = value(key); !s.ok()) return s;
      if (!take(',') && !peek('}')) return fail("',' or '}'");
    }
    skip_space();
    if (at_ != text_.size()) return fail("the end of the header");
    for (const Field& f : fields_)
      if (!f.seen) return bad(fmt::format("has no key '{}'", f.name));
    return header_;
  }

 private:
  struct Field {
    const char* name;
    bool seen = false;
  };

  Status value(const std::string& key) {
    for (Field& f : fields_) {
      if (key != f.name) continue;
      if (f.seen) return bad(fmt::format("has the key '{}' twice", key));
      f.seen = true;
      if (key == "shape") return shape();
      if (key == "fortran_order") return boolean();
      if (peek('[')) return bad("describes a structured dtype; accepted is one number per element");
      return string(header_.descr) ? Status() : fail("a dtype in quotes");
    }
    return bad(
        fmt::format("has the key '{:.32}'; accepted are descr, fortran_order and shape", key));
  }

  Status boolean() {
    skip_space();
    for (const std::string_view word : {"False", "True"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      header_.fortran_order = word == "True";
      return {};
    }
    return fail("True or False");
  }

  Status shape() {
    if (!take('(')) return fail("'(' of the shape");
    while (!take(')')) {
      std::int64_t extent = 0;
      skip_space();
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) return fail("an extent from 0 to 2^63 - 1");
      at_ += static_cast<std::size_t>(end - begin);
      take('L');  // Python 2 wrote long integers so
      header_.shape.push_back(extent);
      if (header_.shape.size() > kMaxExtents) return bad("has a shape of more than 64 extents");
      if (!take(',') && !(peek(')') && header_.shape.size() > 1)) return fail("','");
    }
    return {};
  }

  bool string(std::string& out) {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') return false;
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n\f", at_), text_.size()); }
  bool peek(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    const bool found = peek(c);
    at_ += found;
    return found;
  }

  static Status bad(const std::string& what) {
    return {StatusCode::kInvalidArgument, "the .npy header " + what};
  }
  Status fail(const char* expected) {
    skip_space();
    std::string found = at_ < text_.size() ? std::string(text_.substr(at_, 16)) : "its end";
    for (char& c : found)
      if (c < ' ' || c > '~') c = '?';
    return bad(fmt::format("has \"{}\" at byte {} where {} is expected", found, at_, expected));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  NpyHeader header_;
  Field fields_[3] = {{"descr"}, {"fortran_order"}, {"shape"}};
};

}  // namespace

Expected<NpyHeader> parse_npy_header(std::string_view text) {
  return Parser(text).header();
}

}  // namespace tilewise::io
