#include "spec.h"

#include <charconv>
#include <map>
#include <mutex>
#include <string>

namespace tilewise::python {
namespace {

struct Request {
  Problem problem;
  Device device;
  Options options;
};

template <class Number>
bool read(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}
bool read(std::string_view text, bool& out) {
  out = text == "1";
  return out || text == "0";
}
bool read(std::string_view text, std::string& out) {
  out = text;
  return true;
}
template <class T>
bool read(std::string_view text, std::optional<T>& out) {
  return read(text, out.emplace());
}
bool read(std::string_view text, DType& out) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    out = dtype;
    if (text == name_of(dtype)) return true;
  }
  return false;
}
bool read(std::string_view text, Align& out) {
  out = text == "top-left" ? Align::kTopLeft : Align::kBottomRight;
  return text == "top-left" || text == "bottom-right";
}
bool read(std::string_view text, Alibi& out) {
  int rank = 0;  // of the slopes
  if (!read(text, rank) || rank < 0 || rank > 2) return false;
  out = static_cast<Alibi>(rank);
  return true;
}
// "cpu" or "cuda:0"
bool read(std::string_view text, Device& out) {
  if (text == "cpu") return true;
  out.kind = Device::Kind::kCuda;
  return text.substr(0, 5) == "cuda:" && read(text.substr(5), out.index);
}
// The dtype, then a dot for each of the four dims that is broadcast and a colon for each that
// isn't: "f32..::" is a (1, 1, Sq, Sk) bias.
bool read(std::string_view text, Bias& out) {
  if (text.size() < 5) return false;
  const std::string_view dims = text.substr(text.size() - 4);
  out.present = true;
  out.broadcast_batch = dims[0] == '.', out.broadcast_heads = dims[1] == '.';
  out.broadcast_q = dims[2] == '.', out.broadcast_kv = dims[3] == '.';
  return read(text.substr(0, text.size() - 4), out.dtype);
}

using Reader = bool (*)(std::string_view, Request&);

#define TILEWISE_FIELD(place) \
  ([](std::string_view text, Request& r) { return read(text, r.place); })
const std::map<std::string_view, Reader>& readers() {
  static const std::map<std::string_view, Reader> table = {
      {"batch", TILEWISE_FIELD(problem.batch)},
      {"heads_q", TILEWISE_FIELD(problem.heads_q)},
      {"heads_kv", TILEWISE_FIELD(problem.heads_kv)},
      {"seq_q", TILEWISE_FIELD(problem.seq_q)},
      {"seq_kv", TILEWISE_FIELD(problem.seq_kv)},
      {"head_dim", TILEWISE_FIELD(problem.head_dim)},
      {"head_dim_v", TILEWISE_FIELD(problem.head_dim_v)},
      {"dtype", TILEWISE_FIELD(problem.dtype)},
      {"scale", TILEWISE_FIELD(problem.scale)},
      {"softcap", TILEWISE_FIELD(problem.softcap)},
      {"causal", TILEWISE_FIELD(problem.mask.causal)},
      {"left", TILEWISE_FIELD(problem.mask.left)},
      {"right", TILEWISE_FIELD(problem.mask.right)},
      {"align", TILEWISE_FIELD(problem.mask.align)},
      {"alibi", TILEWISE_FIELD(problem.alibi)},
      {"bias", TILEWISE_FIELD(problem.bias)},
      {"sink", TILEWISE_FIELD(problem.sink)},
      {"dropout_p", TILEWISE_FIELD(problem.dropout_p)},
      {"cu_seqlens_q", TILEWISE_FIELD(problem.varlen.cu_seqlens_q)},
      {"cu_seqlens_kv", TILEWISE_FIELD(problem.varlen.cu_seqlens_kv)},
      {"seqused_q", TILEWISE_FIELD(problem.varlen.seqused_q)},
      {"seqused_kv", TILEWISE_FIELD(problem.varlen.seqused_kv)},
      {"total_q", TILEWISE_FIELD(problem.varlen.total_q)},
      {"total_kv", TILEWISE_FIELD(problem.varlen.total_kv)},
      {"device", TILEWISE_FIELD(device)},
      {"kernel", TILEWISE_FIELD(options.kernel)},
      {"isa", TILEWISE_FIELD(options.isa)},
      {"threads", TILEWISE_FIELD(options.threads)},
      {"deterministic", TILEWISE_FIELD(options.deterministic)},
      {"tile_q", TILEWISE_FIELD(options.tile_q)},
      {"tile_kv", TILEWISE_FIELD(options.tile_kv)},
  };
  return table;
}
#undef TILEWISE_FIELD

Expected<Request> read_request(std::string_view spec) {
  Request request;
  while (!spec.empty()) {
    const std::string_view field = spec.substr(0, spec.find(' '));
    spec.remove_prefix(std::min(spec.size(), field.size() + 1));
    const std::size_t equals = std::min(field.find('='), field.size());
    const auto reader = readers().find(field.substr(0, equals));
    const std::string_view value = field.substr(std::min(field.size(), equals + 1));
    if (reader == readers().end() || !reader->second(value, request))
      return Status(StatusCode::kInvalidArgument,
                    "the field \"" + std::string(field) + "\" of a problem can't be read");
  }
  return request;
}

}  // namespace

Expected<std::shared_ptr<const Plan>> plan_of_spec(std::string_view spec) {
  constexpr std::size_t kMostRemembered = 4096;  // a plan is about 2 KiB
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Plan>, std::less<>> known;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(spec); found != known.end()) return found->second;
  }
  const auto request = read_request(spec);
  if (!request.ok()) return request.status();
  Expected<Plan> made = make_plan(request->problem, request->device, request->options);
  if (!made.ok()) return made.status();
  auto plan = std::make_shared<const Plan>(std::move(*made));
  const std::lock_guard lock(mutex);
  if (known.size() >= kMostRemembered) known.clear();
  known.emplace(spec, plan);
  return plan;
}

}  // namespace tilewise::python
