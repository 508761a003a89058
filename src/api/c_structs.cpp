// Field by field, with the enums checked, since C can hand in any integer.
#include "api/c_structs.h"

#include "core/format.h"

namespace tilewise {
namespace {

struct Choice {
  const char* name;
  std::int32_t value;
  std::int32_t first, last;  // accepted
};

Status check_choice(const Choice& c) {
  if (c.value >= c.first && c.value <= c.last) return {};
  return invalid(format_text("{} is {}; accepted are {} to {} (see the enums of tilewise.h)",
                             c.name, c.value, c.first, c.last));
}

// The first failure of a list, or ok.
template <class... Statuses>
Status first_error(Statuses... statuses) {
  Status first;
  ((first.ok() && !statuses.ok() ? void(first = std::move(statuses)) : void()), ...);
  return first;
}

Status check_switches(const tw_problem& p) {
  const Choice switches[] = {{"has_scale", p.has_scale, 0, 1},
                             {"causal", p.causal, 0, 1},
                             {"bias", p.bias, 0, 1},
                             {"bias_broadcast_batch", p.bias_broadcast_batch, 0, 1},
                             {"bias_broadcast_heads", p.bias_broadcast_heads, 0, 1},
                             {"bias_broadcast_q", p.bias_broadcast_q, 0, 1},
                             {"bias_broadcast_kv", p.bias_broadcast_kv, 0, 1},
                             {"sink", p.sink, 0, 1},
                             {"cu_seqlens_q", p.cu_seqlens_q, 0, 1},
                             {"cu_seqlens_kv", p.cu_seqlens_kv, 0, 1},
                             {"seqused_q", p.seqused_q, 0, 1},
                             {"seqused_kv", p.seqused_kv, 0, 1},
                             {"dtype", p.dtype, TW_F32, TW_I32},
                             {"out_dtype", p.out_dtype, TW_OUT_SAME, TW_I32},
                             {"bias_dtype", p.bias_dtype, TW_F32, TW_I32},
                             {"align", p.align, TW_BOTTOM_RIGHT, TW_TOP_LEFT},
                             {"alibi", p.alibi, TW_ALIBI_NONE, TW_ALIBI_PER_BATCH_AND_HEAD}};
  for (const Choice& c : switches)
    if (Status s = check_choice(c); !s.ok()) return s;
  return {};
}

Status read_tensor(const char* name, const tw_tensor* given, Tensor& out) {
  out = {};
  if (!given) return {};
  tw_tensor t{};
  Status s = read_struct("tw_tensor", given, t);
  if (s.ok()) s = check_choice({"dtype", t.dtype, TW_F32, TW_I32});
  if (s.ok() && t.data) s = check_choice({"rank", t.rank, 1, kMaxRank});
  const Expected<Device> device = read_device(t.device_kind, t.device_index);
  if (s = first_error(s, device.status()); !s.ok())
    return {s.code(), format_text("{}: {}", name, s.message())};
  out.data = t.data;
  out.dtype = static_cast<DType>(t.dtype);
  out.device = *device;
  out.rank = t.rank;
  std::copy_n(t.shape, kMaxRank, out.shape.begin());
  std::copy_n(t.strides, kMaxRank, out.strides.begin());
  return {};
}

}  // namespace

Expected<Device> read_device(std::int32_t kind, std::int32_t index) {
  if (Status s = check_choice({"device_kind", kind, TW_CPU, TW_CUDA}); !s.ok()) return s;
  return Device{static_cast<Device::Kind>(kind), index};
}

Expected<Problem> read_problem(const tw_problem* given) {
  tw_problem p = tw_problem_init();
  if (Status s = read_struct("tw_problem", given, p); !s.ok()) return s;
  if (Status s = check_switches(p); !s.ok()) return s;
  Problem out;
  out.batch = p.batch;
  out.heads_q = p.heads_q;
  out.heads_kv = p.heads_kv;
  out.seq_q = p.seq_q;
  out.seq_kv = p.seq_kv;
  out.head_dim = p.head_dim;
  out.head_dim_v = p.head_dim_v;
  out.dtype = static_cast<DType>(p.dtype);
  if (p.out_dtype != TW_OUT_SAME) out.out_dtype = static_cast<DType>(p.out_dtype);
  if (p.has_scale) out.scale = p.scale;
  out.softcap = p.softcap;
  out.mask = {p.causal != 0, p.window_left, p.window_right, static_cast<Align>(p.align)};
  out.alibi = static_cast<Alibi>(p.alibi);
  out.bias.present = p.bias;
  out.bias.broadcast_batch = p.bias_broadcast_batch;
  out.bias.broadcast_heads = p.bias_broadcast_heads;
  out.bias.broadcast_q = p.bias_broadcast_q;
  out.bias.broadcast_kv = p.bias_broadcast_kv;
  out.bias.dtype = static_cast<DType>(p.bias_dtype);
  out.sink = p.sink;
  out.dropout_p = p.dropout_p;
  out.varlen.cu_seqlens_q = p.cu_seqlens_q;
  out.varlen.cu_seqlens_kv = p.cu_seqlens_kv;
  out.varlen.seqused_q = p.seqused_q;
  out.varlen.seqused_kv = p.seqused_kv;
  out.varlen.total_q = p.total_q;
  out.varlen.total_kv = p.total_kv;
  return out;
}

Expected<Options> read_options(const tw_options* given) {
  tw_options o = tw_options_init();
  if (!given) given = &o;
  if (Status s = read_struct("tw_options", given, o); !s.ok()) return s;
  if (Status s = check_choice({"deterministic", o.deterministic, 0, 1}); !s.ok()) return s;
  Options out;
  if (o.kernel) out.kernel = o.kernel;
  if (o.isa) out.isa = o.isa;
  out.threads = o.threads;
  out.deterministic = o.deterministic;
  out.tile_q = o.tile_q;
  out.tile_kv = o.tile_kv;
  out.fast_memory_bytes = o.fast_memory_bytes;
  return out;
}

Expected<Inputs> read_inputs(const tw_inputs* given) {
  tw_inputs in = tw_inputs_init();
  if (Status s = read_struct("tw_inputs", given, in); !s.ok()) return s;
  Inputs out;
  const Status s = first_error(
      read_tensor("q", in.q, out.q), read_tensor("k", in.k, out.k), read_tensor("v", in.v, out.v),
      read_tensor("alibi_slopes", in.alibi_slopes, out.alibi_slopes),
      read_tensor("bias", in.bias, out.bias), read_tensor("sink", in.sink, out.sink),
      read_tensor("cu_seqlens_q", in.cu_seqlens_q, out.cu_seqlens_q),
      read_tensor("cu_seqlens_kv", in.cu_seqlens_kv, out.cu_seqlens_kv),
      read_tensor("seqused_q", in.seqused_q, out.seqused_q),
      read_tensor("seqused_kv", in.seqused_kv, out.seqused_kv));
  if (!s.ok()) return s;
  out.dropout_seed = in.dropout_seed;
  out.dropout_offset = in.dropout_offset;
  return out;
}

Expected<Outputs> read_outputs(const tw_outputs* given) {
  tw_outputs g = tw_outputs_init();
  if (Status s = read_struct("tw_outputs", given, g); !s.ok()) return s;
  Outputs out;
  const Status s = first_error(read_tensor("o", g.o, out.o), read_tensor("lse", g.lse, out.lse));
  if (!s.ok()) return s;
  return out;
}

Expected<Gradients> read_gradients(const tw_gradients* given) {
  tw_gradients g = tw_gradients_init();
  if (Status s = read_struct("tw_gradients", given, g); !s.ok()) return s;
  Gradients out;
  const Status s =
      first_error(read_tensor("o", g.o, out.o), read_tensor("lse", g.lse, out.lse),
                  read_tensor("d_o", g.d_o, out.d_o), read_tensor("d_lse", g.d_lse, out.d_lse),
                  read_tensor("dq", g.dq, out.dq), read_tensor("dk", g.dk, out.dk),
                  read_tensor("dv", g.dv, out.dv), read_tensor("dbias", g.dbias, out.dbias),
                  read_tensor("dsink", g.dsink, out.dsink));
  if (!s.ok()) return s;
  return out;
}

Expected<Launch> read_launch(const tw_launch* given) {
  tw_launch l = tw_launch_init();
  if (!given) given = &l;
  if (Status s = read_struct("tw_launch", given, l); !s.ok()) return s;
  return Launch{l.workspace, l.workspace_bytes, l.stream};
}

}  // namespace tilewise
