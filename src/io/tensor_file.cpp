// Dispatch by file name, and writing several files as one step.
#include "io/tensor_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <vector>

#include "io/npy.h"
#include "io/safetensors.h"

namespace tilewise::io {
namespace {

constexpr std::string_view kNpy = ".npy", kSafetensors = ".safetensors";

// What lands in one file. An .npy file holds one tensor of no name.
using Files = std::map<std::string, std::vector<NamedTensor>>;

Expected<Files> group(std::span<const Output> outputs) {
  Files files;
  for (const Output& output : outputs) {
    Expected<TensorPath> path = parse_tensor_path(output.path);
    if (!path.ok()) return path.status();
    std::vector<NamedTensor>& in_file = files[path->file];
    for (const NamedTensor& other : in_file)
      if (other.name == path->name)
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("{}: two outputs go there; accepted is one each", output.path));
    in_file.push_back({path->name, output.tensor});
  }
  return files;
}

}  // namespace

Expected<TensorPath> parse_tensor_path(const std::string& text) {
  const std::size_t colon = text.find(std::string(kSafetensors) + ':');
  if (colon != std::string::npos) {
    const std::size_t file_end = colon + kSafetensors.size();
    if (file_end + 1 < text.size())
      return TensorPath{text.substr(0, file_end), text.substr(file_end + 1)};
  } else if (text.size() > kNpy.size() && text.ends_with(kNpy)) {
    return TensorPath{text, {}};
  }
  const bool nameless = text.ends_with(kSafetensors) || text.ends_with(":");
  return Status(StatusCode::kInvalidArgument,
                fmt::format("\"{}\" {}; accepted are FILE.npy and FILE.safetensors:NAME", text,
                            nameless ? "names no tensor of the file" : "is not a tensor's path"));
}

Expected<HostTensor> read_tensor(const std::string& text, Role role) {
  const Expected<TensorPath> path = parse_tensor_path(text);
  if (!path.ok()) return path.status();
  const Expected<Source> source = Source::open(path->file);
  if (!source.ok()) return source.status();
  return path->name.empty() ? read_npy(*source, role) : read_safetensors(*source, path->name, role);
}

Status check_outputs(std::span<const std::string> paths) {
  std::vector<Output> outputs;
  for (const std::string& path : paths) outputs.push_back({path, {}});
  const Expected<Files> files = group(outputs);
  if (!files.ok()) return files.status();
  for (const auto& [path, tensors] : *files)
    if (Expected<AtomicFile> trial = AtomicFile::create(path); !trial.ok()) return trial.status();
  return {};
}

Status check_keeps_inputs(std::span<const std::string> outputs,
                          std::span<const std::string> inputs) {
  for (const std::string& out : outputs)
    for (const std::string& in : inputs) {
      if (in.empty()) continue;
      const Expected<TensorPath> to = parse_tensor_path(out), from = parse_tensor_path(in);
      if (!to.ok() || !from.ok()) continue;  // said elsewhere, in words of their own
      std::error_code none;
      if (std::filesystem::equivalent(to->file, from->file, none))
        return {
            StatusCode::kInvalidArgument,
            fmt::format("{} would replace the file that {} is read from; accepted is another file",
                        out, in)};
    }
  return {};
}

Status write_tensors(std::span<const Output> outputs) {
  const Expected<Files> files = group(outputs);
  if (!files.ok()) return files.status();
  std::vector<AtomicFile> written;
  for (const auto& [path, tensors] : *files) {
    Expected<AtomicFile> file = AtomicFile::create(path);
    if (!file.ok()) return file.status();
    const bool npy = tensors.front().name.empty();
    Status s = npy ? write_npy(*file, tensors.front().tensor) : write_safetensors(*file, tensors);
    if (s.ok()) s = file->flush();
    if (!s.ok()) return s;
    written.push_back(std::move(*file));
  }
  for (AtomicFile& file : written)
    if (Status s = file.commit(); !s.ok()) return s;
  return {};
}

}  // namespace tilewise::io
