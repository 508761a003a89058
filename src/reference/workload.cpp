// See workload.h.
#include "reference/workload.h"

#include "core/format.h"
#include "reference/fill.h"

namespace tilewise::reference {
namespace {

struct Shapes {
  const Problem& p;

  // (B, S, H, D), or (total, H, D) when packed.
  std::vector<std::int64_t> q_side(std::int64_t d) const {
    if (p.varlen.cu_seqlens_q) return {p.varlen.total_q, p.heads_q, d};
    return {p.batch, p.seq_q, p.heads_q, d};
  }
  std::vector<std::int64_t> kv_side(std::int64_t d) const {
    if (p.varlen.cu_seqlens_kv) return {p.varlen.total_kv, p.heads_kv, d};
    return {p.batch, p.seq_kv, p.heads_kv, d};
  }
  std::vector<std::int64_t> lse() const {
    if (p.varlen.cu_seqlens_q) return {p.heads_q, p.varlen.total_q};
    return {p.batch, p.heads_q, p.seq_q};
  }
  std::vector<std::int64_t> bias() const {
    const Bias& b = p.bias;
    return {b.broadcast_batch ? 1 : p.batch, b.broadcast_heads ? 1 : p.heads_q,
            b.broadcast_q ? 1 : p.seq_q, b.broadcast_kv ? 1 : p.seq_kv};
  }
  // Whether Q and K can be slices of one projection.
  bool one_projection() const {
    const auto q = q_side(1), kv = kv_side(1);
    return q.size() == kv.size() && q[0] == kv[0] && (q.size() == 3 || q[1] == kv[1]);
  }
};

}  // namespace

Workload::Workload(const Case& c, std::uint64_t seed) : layout_(c.layout) {
  allocate_inputs(c);
  allocate_outputs(c);
  fill(c, seed, in, grads);
  seal_inputs();
}

void Workload::seal_inputs() {
  for (Owned& o : inputs_) o.buffer.seal();
}

void Workload::add(Group& group, const char* name, const TensorSpec& spec, Tensor* view) {
  Buffer buffer = Buffer::make(spec, layout_, view);
  group.push_back({std::move(buffer), {*view}, name});
}

void Workload::add_fused(Group& group, const char* name, const std::vector<TensorSpec>& specs,
                         const std::vector<Tensor*>& views) {
  Buffer buffer = Buffer::fuse(specs, views);
  group.push_back({std::move(buffer), {}, name});
  for (const Tensor* view : views) group.back().views.push_back(*view);
}

void Workload::allocate_inputs(const Case& c) {
  const Problem& p = c.problem;
  const Shapes shapes{p};
  const TensorSpec q{p.dtype, shapes.q_side(p.head_dim)}, k{p.dtype, shapes.kv_side(p.head_dim)};
  const TensorSpec v{p.dtype, shapes.kv_side(p.head_dim_v)};
  if (layout_ == Layout::kFused && shapes.one_projection()) {
    add_fused(inputs_, "Q, K or V", {q, k, v}, {&in.q, &in.k, &in.v});
  } else if (layout_ == Layout::kFused) {
    add(inputs_, "Q", q, &in.q);
    add_fused(inputs_, "K or V", {k, v}, {&in.k, &in.v});
  } else {
    add(inputs_, "Q", q, &in.q);
    add(inputs_, "K", k, &in.k);
    add(inputs_, "V", v, &in.v);
  }
  if (p.alibi == Alibi::kPerHead)
    add(inputs_, "alibi_slopes", {DType::kF32, {p.heads_q}}, &in.alibi_slopes);
  if (p.alibi == Alibi::kPerBatchAndHead)
    add(inputs_, "alibi_slopes", {DType::kF32, {p.batch, p.heads_q}}, &in.alibi_slopes);
  if (p.bias.present) add(inputs_, "bias", {p.bias.dtype, shapes.bias()}, &in.bias);
  if (p.sink) add(inputs_, "sink", {DType::kF32, {p.heads_q}}, &in.sink);

  const Layout layout = layout_;
  layout_ = Layout::kDense;  // index tensors
  const Varlen& n = p.varlen;
  if (n.cu_seqlens_q) add(inputs_, "cu_seqlens_q", {DType::kI32, {p.batch + 1}}, &in.cu_seqlens_q);
  if (n.cu_seqlens_kv)
    add(inputs_, "cu_seqlens_kv", {DType::kI32, {p.batch + 1}}, &in.cu_seqlens_kv);
  if (n.seqused_q) add(inputs_, "seqused_q", {DType::kI32, {p.batch}}, &in.seqused_q);
  if (n.seqused_kv) add(inputs_, "seqused_kv", {DType::kI32, {p.batch}}, &in.seqused_kv);
  layout_ = layout;
}

void Workload::allocate_outputs(const Case& c) {
  const Problem& p = c.problem;
  const Shapes shapes{p};
  const TensorSpec q{p.dtype, shapes.q_side(p.head_dim)}, k{p.dtype, shapes.kv_side(p.head_dim)};
  const TensorSpec v{p.dtype, shapes.kv_side(p.head_dim_v)};
  const TensorSpec o{p.out_dtype.value_or(p.dtype), shapes.q_side(p.head_dim_v)};
  const TensorSpec lse{DType::kF32, shapes.lse()};
  add(outputs_, "O", o, &out.o);
  add(outputs_, "LSE", lse, &out.lse);
  grads.o = out.o;
  grads.lse = out.lse;
  add(inputs_, "dO", o, &grads.d_o);
  if (c.d_lse) add(inputs_, "dLSE", lse, &grads.d_lse);
  if (layout_ == Layout::kFused && shapes.one_projection()) {
    add_fused(gradients_, "dQ, dK or dV", {q, k, v}, {&grads.dq, &grads.dk, &grads.dv});
  } else {
    add(gradients_, "dQ", q, &grads.dq);
    add(gradients_, "dK", k, &grads.dk);
    add(gradients_, "dV", v, &grads.dv);
  }
  if (p.bias.present) add(gradients_, "dbias", {DType::kF32, shapes.bias()}, &grads.dbias);
  if (p.sink) add(gradients_, "dsink", {DType::kF32, {p.heads_q}}, &grads.dsink);
}

void Workload::poison_outputs() {
  for (Owned& o : outputs_) o.buffer.poison();
}

void Workload::poison_gradients() {
  for (Owned& o : gradients_) o.buffer.poison();
}

std::string Workload::damage() const {
  for (const Owned& o : inputs_)
    if (o.buffer.changed()) return format_text("{} (input) was written", o.name);
  for (const Group* group : {&outputs_, &gradients_})
    for (const Owned& o : *group)
      if (!o.buffer.surroundings_intact(o.views))
        return format_text("memory around {} was written", o.name);
  return {};
}

bool Workload::untouched() const {
  for (const Group* group : {&outputs_, &gradients_})
    for (const Owned& o : *group)
      if (!o.buffer.surroundings_intact({})) return false;
  return true;
}

}  // namespace tilewise::reference
