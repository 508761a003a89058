// Field order is the schema's, so that the files read well and diff well.
#include "io/bench_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

namespace tilewise::io {
namespace {

using Json = nlohmann::ordered_json;

std::string mask_name(const Mask& mask) {
  const std::string window =
      mask.left < 0 && mask.right < 0 ? "" : fmt::format("window {},{}", mask.left, mask.right);
  if (!mask.causal) return window.empty() ? "full" : window;
  return window.empty() ? "causal" : "causal " + window;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

Status cannot_append(const std::string& path, int error) {
  return {StatusCode::kInvalidArgument,
          fmt::format("can't append to '{}': {}; a file in a writable folder is accepted", path,
                      std::strerror(error))};
}

}  // namespace

std::string to_json_line(const BenchRecord& r) {
  const Problem& p = r.problem;
  const Json json = {{"pass", r.pass},
                     {"dtype", name_of(p.dtype)},
                     {"d", p.head_dim},
                     {"dv", p.head_dim_v},
                     {"sq", p.seq_q},
                     {"sk", p.seq_kv},
                     {"batch", p.batch},
                     {"hq", p.heads_q},
                     {"hkv", p.heads_kv},
                     {"mask", mask_name(p.mask)},
                     {"device", r.device},
                     {"threads", r.threads},
                     {"impl", r.impl},
                     {"kernel", r.kernel},
                     {"ms_median", r.ms_median},
                     {"tflops", r.ms_median > 0 ? r.flops / r.ms_median * 1e-9 : 0.0},
                     {"ceiling_tflops", number_or_null(r.ceiling_tflops)},
                     {"peak_extra_bytes", number_or_null(r.peak_extra_bytes)},
                     {"date", today()}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status append_record(const std::string& path, const BenchRecord& record) {
  const std::string line = to_json_line(record) + "\n";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return cannot_append(path, errno);
  const ssize_t written = write(fd, line.data(), line.size());
  const int write_error = written < 0 ? errno : ENOSPC;
  const bool closed = close(fd) == 0;
  if (written != static_cast<ssize_t>(line.size())) return cannot_append(path, write_error);
  return closed ? Status() : cannot_append(path, errno);
}

}  // namespace tilewise::io
