// See report.h.
#include "report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tilewise::tools {

using Json = nlohmann::ordered_json;

namespace {

// What a file holds: .npy has float32 for every 16-bit result.
const char* stored_dtype(const io::Output& output) {
  const bool npy = output.path.ends_with(".npy");
  return npy && output.tensor.dtype != DType::kI32 ? "f32" : name_of(output.tensor.dtype);
}

std::span<const std::int64_t> shape_of(const Tensor& t) {
  return {t.shape.data(), static_cast<std::size_t>(t.rank)};
}

}  // namespace

Json to_json(const Problem& p) {
  const auto side = [](std::int64_t longest, bool packed, std::int64_t total) {
    return packed ? Json{{"longest", longest}, {"total", total}} : Json(longest);
  };
  const Varlen& v = p.varlen;
  return {{"batch", p.batch},
          {"heads_q", p.heads_q},
          {"heads_kv", p.heads_kv},
          {"seq_q", side(p.seq_q, v.cu_seqlens_q, v.total_q)},
          {"seq_kv", side(p.seq_kv, v.cu_seqlens_kv, v.total_kv)},
          {"head_dim", p.head_dim},
          {"head_dim_v", p.head_dim_v},
          {"dtype", name_of(p.dtype)},
          {"causal", p.mask.causal},
          {"window", {p.mask.left, p.mask.right}},
          {"align", p.mask.align == Align::kTopLeft ? "top-left" : "bottom-right"},
          {"scale", p.scale ? Json(*p.scale) : Json()},
          {"softcap", p.softcap},
          {"alibi", p.alibi != Alibi::kNone},
          {"bias", p.bias.present},
          {"sink", p.sink},
          {"dropout", p.dropout_p}};
}

Json to_json(const PassPlan& pass) {
  Json passed_over = Json::array();
  for (const Refusal& r : pass.passed_over)
    passed_over.push_back({{"kernel", r.kernel}, {"reason", r.reason}});
  const IoModel& io = pass.io;
  return {{"kernel", pass.kernel},
          {"isa", pass.isa},
          {"tile_q", pass.tile_q},
          {"tile_kv", pass.tile_kv},
          {"threads", pass.threads},
          {"workspace_bytes", pass.workspace_bytes},
          {"flops", pass.flops},
          {"io",
           {{"fast_memory_bytes", io.fast_memory_bytes},
            {"least_bytes", io.least_bytes},
            {"standard_bytes", io.standard_bytes},
            {"fa1_bytes", io.fa1_bytes},
            {"fa2_bytes", io.fa2_bytes}}},
          {"passed_over", passed_over}};
}

Json to_json(const Plan& plan) {
  return {{"problem", to_json(plan.problem)},
          {"device", plan.device.kind == Device::Kind::kCpu ? "cpu" : "cuda"},
          {"forward", to_json(plan.forward)},
          {"backward", to_json(plan.backward)}};
}

void print_run(const RunReport& r, bool json) {
  if (!json) {
    for (const io::Output& o : r.written)
      fmt::print("{}  {} {}\n", o.path, stored_dtype(o), io::shape_text(shape_of(o.tensor)));
    fmt::print("{} on {}, {} threads, {:.3f} ms, {} of workspace\n", r.pass.kernel, r.pass.isa,
               r.pass.threads, r.ms, bytes_text(static_cast<double>(r.pass.workspace_bytes)));
    return;
  }
  Json outputs = Json::array();
  for (const io::Output& o : r.written)
    outputs.push_back(
        {{"path", o.path},
         {"dtype", stored_dtype(o)},
         {"shape", std::vector(shape_of(o.tensor).begin(), shape_of(o.tensor).end())}});
  const Json line = {{"problem", to_json(r.plan.problem)},
                     {"pass", to_json(r.pass)},
                     {"ms", r.ms},
                     {"outputs", outputs}};
  fmt::print("{}\n", line.dump(2));
}

}  // namespace tilewise::tools
