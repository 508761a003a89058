#include "api/check_tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "api/check_lengths.h"
#include "api/check_overlap.h"
#include "core/format.h"
#include "core/invalid.h"

namespace tilewise {
namespace {

using Shape = std::vector<std::int64_t>;

enum class Presence { kRequired, kOptional };
enum class LastDim { kContiguous, kAny };

// What the plan expects of one tensor. `in_problem` is false where the problem has no such term.
struct Expectation {
  const char* name;
  Shape shape;
  DType dtype;
  LastDim last = LastDim::kAny;
  Presence presence = Presence::kRequired;
  bool in_problem = true;
};

Status check_shape(const Expectation& want, const Tensor& t) {
  const Shape have(t.shape.begin(), t.shape.begin() + std::clamp(t.rank, 0, kMaxRank));
  if (t.rank != static_cast<int>(want.shape.size()))
    return invalid(format_text("{} has rank {}; accepted: rank {}, shape ({})", want.name, t.rank,
                               want.shape.size(), comma_separated(want.shape)));
  if (have != want.shape)
    return invalid(format_text("{} has shape ({}); accepted: ({})", want.name,
                               comma_separated(have), comma_separated(want.shape)));
  return {};
}

Status check_memory(const Plan& plan, const Expectation& want, const Tensor& t) {
  if (t.dtype != want.dtype)
    return invalid(
        format_text("{} is {}; accepted: {}", want.name, name_of(t.dtype), name_of(want.dtype)));
  if (t.device.kind != plan.device.kind || t.device.index != plan.device.index)
    return invalid(
        format_text("{} is not on the plan's device; accepted: a tensor that is", want.name));
  if (reinterpret_cast<std::uintptr_t>(t.data) % size_of(t.dtype) != 0)
    return invalid(
        format_text("{} starts at an unaligned address; accepted: a multiple of {} bytes",
                    want.name, size_of(t.dtype)));
  const int last = t.rank - 1;
  if (want.last == LastDim::kContiguous && t.shape[last] > 1 && t.strides[last] != 1)
    return invalid(format_text("{} has stride {} in its last dimension; accepted: 1", want.name,
                               t.strides[last]));
  return {};
}

Status check_tensor(const Plan& plan, const Expectation& want, const Tensor& t) {
  if (!want.in_problem) {
    if (!t.given()) return {};
    return invalid(format_text("{} is given, but the plan's problem has none; accepted: no tensor",
                               want.name));
  }
  if (!t.given()) {
    // An empty tensor has no address to give.
    const bool empty = std::count(want.shape.begin(), want.shape.end(), 0) > 0;
    if (want.presence == Presence::kOptional || empty) return {};
    return invalid(format_text("{} is a null pointer; accepted: a tensor of shape ({})", want.name,
                               comma_separated(want.shape)));
  }
  const Status s = check_shape(want, t);
  return s.ok() ? check_memory(plan, want, t) : s;
}

struct Check {
  Expectation want;
  const Tensor& tensor;
};

Status check_all(const Plan& plan, std::initializer_list<Check> checks) {
  for (const Check& c : checks)
    if (Status s = check_tensor(plan, c.want, c.tensor); !s.ok()) return s;
  return {};
}

Shape q_shape(const Problem& p, std::int64_t d) {
  if (p.varlen.cu_seqlens_q) return {p.varlen.total_q, p.heads_q, d};
  return {p.batch, p.seq_q, p.heads_q, d};
}
Shape kv_shape(const Problem& p, std::int64_t d) {
  if (p.varlen.cu_seqlens_kv) return {p.varlen.total_kv, p.heads_kv, d};
  return {p.batch, p.seq_kv, p.heads_kv, d};
}
Shape lse_shape(const Problem& p) {
  if (p.varlen.cu_seqlens_q) return {p.heads_q, p.varlen.total_q};
  return {p.batch, p.heads_q, p.seq_q};
}
Shape bias_shape(const Problem& p) {
  const Bias& b = p.bias;
  return {b.broadcast_batch ? 1 : p.batch, b.broadcast_heads ? 1 : p.heads_q,
          b.broadcast_q ? 1 : p.seq_q, b.broadcast_kv ? 1 : p.seq_kv};
}

std::array<PlacedTensor, 10> placed(const Inputs& in) {
  return {{{"q", in.q},
           {"k", in.k},
           {"v", in.v},
           {"alibi_slopes", in.alibi_slopes},
           {"bias", in.bias},
           {"sink", in.sink},
           {"cu_seqlens_q", in.cu_seqlens_q},
           {"cu_seqlens_kv", in.cu_seqlens_kv},
           {"seqused_q", in.seqused_q},
           {"seqused_kv", in.seqused_kv}}};
}

constexpr auto kContiguous = LastDim::kContiguous;
constexpr auto kAny = LastDim::kAny;
constexpr auto kRequired = Presence::kRequired;
constexpr auto kOptional = Presence::kOptional;

}  // namespace

Status check_inputs(const Plan& plan, const Inputs& in) {
  const Problem& p = plan.problem;
  const Varlen& v = p.varlen;
  const Shape cu = {p.batch + 1}, used = {p.batch};
  const Shape slopes =
      p.alibi == Alibi::kPerBatchAndHead ? Shape{p.batch, p.heads_q} : Shape{p.heads_q};
  const Status s = check_all(
      plan,
      {{{"q", q_shape(p, p.head_dim), p.dtype, kContiguous}, in.q},
       {{"k", kv_shape(p, p.head_dim), p.dtype, kContiguous}, in.k},
       {{"v", kv_shape(p, p.head_dim_v), p.dtype, kContiguous}, in.v},
       {{"alibi_slopes", slopes, DType::kF32, kAny, kRequired, p.alibi != Alibi::kNone},
        in.alibi_slopes},
       {{"bias", bias_shape(p), p.bias.dtype, kContiguous, kRequired, p.bias.present}, in.bias},
       {{"sink", {p.heads_q}, DType::kF32, kAny, kRequired, p.sink}, in.sink},
       {{"cu_seqlens_q", cu, DType::kI32, kAny, kRequired, v.cu_seqlens_q}, in.cu_seqlens_q},
       {{"cu_seqlens_kv", cu, DType::kI32, kAny, kRequired, v.cu_seqlens_kv}, in.cu_seqlens_kv},
       {{"seqused_q", used, DType::kI32, kAny, kRequired, v.seqused_q}, in.seqused_q},
       {{"seqused_kv", used, DType::kI32, kAny, kRequired, v.seqused_kv}, in.seqused_kv}});
  if (!s.ok() || plan.device.kind != Device::Kind::kCpu) return s;
  return check_lengths(p, in);
}

Status check_outputs(const Plan& plan, const Inputs& in, const Outputs& out) {
  const Problem& p = plan.problem;
  const DType dtype = p.out_dtype.value_or(p.dtype);
  const Status s =
      check_all(plan, {{{"o", q_shape(p, p.head_dim_v), dtype, kContiguous}, out.o},
                       {{"lse", lse_shape(p), DType::kF32, kAny, kOptional}, out.lse}});
  const PlacedTensor written[] = {{"o", out.o}, {"lse", out.lse}};
  return s.ok() ? check_overlap(written, placed(in)) : s;
}

Status check_gradients(const Plan& plan, const Inputs& in, const Gradients& g) {
  const Problem& p = plan.problem;
  const DType out = p.out_dtype.value_or(p.dtype);
  const Shape o = q_shape(p, p.head_dim_v), lse = lse_shape(p);
  const Status s = check_all(
      plan,
      {{{"o", o, out, kContiguous}, g.o},
       {{"lse", lse, DType::kF32}, g.lse},
       {{"d_o", o, out, kContiguous}, g.d_o},
       {{"d_lse", lse, DType::kF32, kAny, kOptional}, g.d_lse},
       {{"dq", q_shape(p, p.head_dim), p.dtype, kContiguous}, g.dq},
       {{"dk", kv_shape(p, p.head_dim), p.dtype, kContiguous}, g.dk},
       {{"dv", kv_shape(p, p.head_dim_v), p.dtype, kContiguous}, g.dv},
       {{"dbias", bias_shape(p), DType::kF32, kContiguous, kOptional, p.bias.present}, g.dbias},
       {{"dsink", {p.heads_q}, DType::kF32, kAny, kOptional, p.sink}, g.dsink}});
  if (!s.ok()) return s;
  const PlacedTensor written[] = {
      {"dq", g.dq}, {"dk", g.dk}, {"dv", g.dv}, {"dbias", g.dbias}, {"dsink", g.dsink}};
  const PlacedTensor given[] = {{"o", g.o}, {"lse", g.lse}, {"d_o", g.d_o}, {"d_lse", g.d_lse}};
  const Status apart = check_overlap(written, placed(in));
  return apart.ok() ? check_overlap(written, given) : apart;
}

Status check_launch(const PassPlan& pass, const Launch& launch) {
  if (pass.workspace_bytes == 0) return {};
  if (!launch.workspace)
    return invalid(format_text("launch.workspace is a null pointer; accepted: {} bytes",
                               pass.workspace_bytes));
  if (launch.workspace_bytes < pass.workspace_bytes)
    return {StatusCode::kOutOfMemory,
            format_text("launch.workspace_bytes is {}; accepted: at least {}",
                        launch.workspace_bytes, pass.workspace_bytes)};
  if (reinterpret_cast<std::uintptr_t>(launch.workspace) % 64 != 0)
    return invalid("launch.workspace is not aligned; accepted: a multiple of 64 bytes");
  return {};
}

}  // namespace tilewise
