#include "cuda/runtime/bundle.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/format.h"
#include "cuda/runtime/digest.h"

namespace tilewise::cuda {
namespace {

constexpr std::string_view kMagic = "tilewise", kKind = "bundle", kVersion = "1";
constexpr std::size_t kLongestTitle = 256;

// The words of a line, if there are exactly N of them.
template <std::size_t N>
std::optional<std::array<std::string_view, N>> words_of(std::string_view line) {
  std::array<std::string_view, N> words;
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t end = line.find(' ');
    if ((end == std::string_view::npos) != (i + 1 == N)) return {};
    words[i] = line.substr(0, end);
    line.remove_prefix(i + 1 == N ? line.size() : end + 1);
  }
  return words;
}

bool parse(std::string_view word, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

std::string read_bytes(std::ifstream& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string out(bytes, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(out.data(), static_cast<std::streamsize>(bytes));
  return file ? out : std::string();
}

Status wrong(const std::string& path, std::string_view what) {
  return {StatusCode::kInvalidArgument, format_text("the kernel bundle {} {}", path, what)};
}

struct Title {
  std::string_view headers;
  std::uint64_t index_at = 0, index_bytes = 0;
  std::string_view index_digest;
};

// `head` holds the file's begin.
std::optional<Title> parse_title(std::string_view head) {
  const std::size_t end = head.find('\n');
  if (end == std::string_view::npos) return {};
  const auto words = words_of<6>(head.substr(0, end));
  Title title;
  if (!words || (*words)[0] != kMagic || (*words)[1] != kKind || (*words)[2] != kVersion ||
      !parse((*words)[4], title.index_bytes))
    return {};
  title.headers = (*words)[3];
  title.index_at = end + 1;
  title.index_digest = (*words)[5];
  return title;
}

}  // namespace

std::string bundle_bytes(std::string_view headers_digest, std::vector<BundleEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const BundleEntry& a, const BundleEntry& b) { return a.key < b.key; });
  entries.erase(
      std::unique(entries.begin(), entries.end(),
                  [](const BundleEntry& a, const BundleEntry& b) { return a.key == b.key; }),
      entries.end());
  // Offsets are written with a fixed width, so that the index' size does not depend on them.
  const auto index_from = [&](std::uint64_t offset) {
    std::string index;
    for (const BundleEntry& e : entries) {
      index += format_text("{} {} {} {:012} {} {}\n", e.key, e.arch, e.cubin.compiler, offset,
                           e.cubin.code.size(), digest_of(e.cubin.code));
      offset += e.cubin.code.size();
    }
    return index;
  };
  const auto title_of = [&](const std::string& index) {
    return format_text("{} {} {} {} {} {}\n", kMagic, kKind, kVersion, headers_digest, index.size(),
                       digest_of(index));
  };
  const std::string draft = index_from(0);
  const std::string index = index_from(title_of(draft).size() + draft.size());
  std::string out = title_of(index) + index;
  for (const BundleEntry& e : entries) out += e.cubin.code;
  return out;
}

bool Bundle::parse_line(std::string_view line, std::uint64_t file_bytes, Entry& entry) {
  const auto words = words_of<6>(line);
  if (!words || !parse((*words)[3], entry.offset) || !parse((*words)[4], entry.bytes)) return false;
  entry.key = (*words)[0];
  entry.compiler = (*words)[2];
  entry.digest = (*words)[5];
  return entry.offset <= file_bytes && entry.bytes <= file_bytes - entry.offset;
}

Expected<Bundle> Bundle::open(const std::string& path, std::string_view headers_digest) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return Status(StatusCode::kUnavailable, format_text("there is no kernel bundle {}", path));
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  const std::string head = read_bytes(file, 0, std::min<std::uint64_t>(file_bytes, kLongestTitle));
  const auto title = parse_title(head);
  if (!title) return wrong(path, "is not a bundle of this format, or can't be read");
  if (title->headers != headers_digest)
    return wrong(path, "was made by another version of tilewise; make it again: tilewise compile");
  if (title->index_bytes > file_bytes - title->index_at) return wrong(path, "is cut short");
  const std::string index = read_bytes(file, title->index_at, title->index_bytes);
  if (digest_of(index) != title->index_digest) return wrong(path, "is corrupt in its index");
  Bundle bundle;
  bundle.path_ = path;
  for (std::string_view rest = index; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size() - 1);
    Entry entry;
    if (!parse_line(rest.substr(0, end), file_bytes, entry)) return wrong(path, "is cut short");
    bundle.entries_.push_back(std::move(entry));
    rest.remove_prefix(end + 1);
  }
  return bundle;
}

Expected<Cubin> Bundle::find(std::string_view key) const {
  const auto entry =
      std::lower_bound(entries_.begin(), entries_.end(), key,
                       [](const Entry& e, std::string_view wanted) { return e.key < wanted; });
  if (entry == entries_.end() || entry->key != key)
    return Status(StatusCode::kUnavailable,
                  format_text("the kernel bundle {} lacks this kernel", path_));
  std::ifstream file(path_, std::ios::binary);
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path_, error);
  if (error || entry->bytes > file_bytes) return wrong(path_, "is cut short");
  std::string code = read_bytes(file, entry->offset, entry->bytes);
  if (digest_of(code) != entry->digest) return wrong(path_, "is corrupt in this kernel");
  return Cubin{std::move(code), entry->compiler};
}

}  // namespace tilewise::cuda
