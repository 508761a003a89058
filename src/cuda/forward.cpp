#include "cuda/forward.h"

#include <map>
#include <mutex>
#include <tuple>

#include "core/format.h"
#include "cuda/device/sm90/forward_params.h"
#include "cuda/product_scale.h"
#include "cuda/runtime/call_key.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/memory_check.h"
#include "cuda/runtime/tensor_map.h"
#include "cuda/schedule.h"
#include "cuda/table.h"

namespace tilewise::cuda {
namespace {

using sm90::ForwardConfig;
using sm90::ForwardParams;

// O leaves in 16-byte stores, under the rules of TMA.
Status check_tensors(const Driver& d, const DeviceContext& device, const Inputs& in,
                     const Outputs& out) {
  const NamedTensor all[] = {{"q", in.q},
                             {"k", in.k},
                             {"v", in.v},
                             {"o", out.o},
                             {"lse", out.lse},
                             {"alibi_slopes", in.alibi_slopes},
                             {"bias", in.bias},
                             {"sink", in.sink},
                             {"cu_seqlens_q", in.cu_seqlens_q},
                             {"cu_seqlens_kv", in.cu_seqlens_kv},
                             {"seqused_q", in.seqused_q},
                             {"seqused_kv", in.seqused_kv}};
  Status s = check_memory(d, device, all);
  if (s.ok()) s = check_addressable(std::span(all).first(4));
  return s.ok() ? check_lengths(in) : s;
}

// Strides of (B, S, H) of a tensor that may be packed (total, H, D).
struct RowStrides {
  std::int64_t b = 0, s = 0, h = 0;
};
RowStrides row_strides(const Tensor& t) {
  return {t.rank == 4 ? t.strides[0] : 0, t.strides[t.rank - 3], t.strides[t.rank - 2]};
}

void fill_outputs(ForwardParams& p, const Outputs& out) {
  const RowStrides o = row_strides(out.o);
  p.o = out.o.data;
  p.o_stride_b = o.b, p.o_stride_s = o.s, p.o_stride_h = o.h;
  if (!out.lse.given()) return;
  const Tensor& lse = out.lse;  // (B, Hq, Sq) or (Hq, total_q)
  p.lse = static_cast<float*>(lse.data);
  p.lse_stride_b = lse.rank == 3 ? lse.strides[0] : 0;
  p.lse_stride_h = lse.strides[lse.rank - 2];
  p.lse_stride_s = lse.strides[lse.rank - 1];
}

void fill_scores(ForwardParams& p, const Problem& problem, const Inputs& in) {
  const float scale = product_scale(problem);
  p.scale_log2 = scale * kLog2e;
  if (problem.softcap != 0) {
    p.softcap_log2 = problem.softcap * kLog2e;
    p.scale_over_softcap = scale / problem.softcap;
  }
  if (in.alibi_slopes.given()) {
    p.alibi_slopes = static_cast<const float*>(in.alibi_slopes.data);
    p.alibi_stride_b = in.alibi_slopes.rank == 2 ? in.alibi_slopes.strides[0] : 0;
    p.alibi_stride_h = in.alibi_slopes.strides[in.alibi_slopes.rank - 1];
  }
  if (problem.bias.present) {
    const Tensor& bias = in.bias;
    const auto stride = [&](int i) { return bias.shape[i] == 1 ? 0 : bias.strides[i]; };
    p.bias = bias.data;
    p.bias_stride_b = stride(0), p.bias_stride_h = stride(1);
    p.bias_stride_q = stride(2), p.bias_stride_kv = stride(3);
  }
  if (problem.sink) {
    p.sink = static_cast<const float*>(in.sink.data);
    p.sink_stride = in.sink.strides[0];
  }
  p.dropout_threshold = dropout_threshold(problem.dropout_p);
  p.dropout_scale = dropout_scale(problem.dropout_p);
}

void fill_lengths(ForwardParams& p, const Inputs& in) {
  const auto lengths = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  p.cu_seqlens_q = lengths(in.cu_seqlens_q);
  p.cu_seqlens_kv = lengths(in.cu_seqlens_kv);
  p.seqused_q = lengths(in.seqused_q);
  p.seqused_kv = lengths(in.seqused_kv);
}

// Simulating a schedule costs more than a launch may; problems come again.
int remembered_section_heads(const ScheduleShape& s) {
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                             std::int64_t, std::int64_t, int, int, int>,
                  int>
      known;
  const auto key = std::make_tuple(s.heads, s.heads_per_kv, s.kv_bytes, s.band.seq_q, s.band.seq_kv,
                                   s.band.lo, s.band.hi, s.tile_q, s.tile_kv, s.ctas);
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = section_heads(s);
}

void fill_work(ForwardParams& p, const Problem& problem, const ForwardConfig& config, int ctas) {
  p.batch = static_cast<int>(problem.batch);
  p.heads_q = static_cast<int>(problem.heads_q);
  // No heads at all is a problem without work, not a division by zero.
  p.heads_per_kv = static_cast<int>(problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv));
  p.head_dim_v = static_cast<int>(problem.head_dim_v);
  p.seq_q = static_cast<int>(problem.seq_q);
  p.seq_kv = static_cast<int>(problem.seq_kv);
  // Packed sequences are one list of tiles (device/attention/work.h).
  const bool packed = problem.varlen.cu_seqlens_q;
  const int slots = p.heads_q / config.packed_heads;
  p.q_tiles = packed ? first_packed_tile(static_cast<int>(problem.varlen.total_q), p.batch,
                                         config.tile_queries())
                     : ceil_div(p.seq_q, config.tile_queries());
  p.work_items = p.q_tiles * slots * (packed ? 1 : p.batch);
  p.left = problem.mask.left;
  p.right = problem.mask.causal
                ? (problem.mask.right >= 0 ? std::min<std::int64_t>(problem.mask.right, 0) : 0)
                : problem.mask.right;
  p.bottom_right = problem.mask.align == Align::kBottomRight;
  p.section_heads = packed ? slots : 1;
  if (packed || config.order != sm90::Order::kLongestFirst || p.work_items == 0) return;
  const BandMask band = make_band({problem.seq_q, problem.seq_kv, problem.mask.causal,
                                   problem.mask.left, problem.mask.right, p.bottom_right});
  p.section_heads = remembered_section_heads(
      {problem.batch * problem.heads_q / config.packed_heads, p.heads_per_kv / config.packed_heads,
       problem.seq_kv * (problem.head_dim + problem.head_dim_v) * 2, band, config.tile_queries(),
       config.tile_kv, ctas});
}

Status fill_maps(ForwardParams& p, const Driver& d, const ForwardConfig& config, const Inputs& in) {
  const auto q = make_tensor_map(d, in.q, {config.tile_q, config.packed_heads});
  // Without a key nothing is loaded, but a map must still be one.
  const auto k = make_tensor_map(d, has_numbers(in.k) ? in.k : in.q, {config.tile_kv});
  const auto v = make_tensor_map(d, has_numbers(in.v) ? in.v : in.q, {config.tile_kv});
  for (const auto* map : {&q, &k, &v})
    if (!map->ok()) return map->status();
  p.q = *q, p.k = *k, p.v = *v;
  return {};
}

// Everything that a launch needs but the dropout's key.
struct Prepared {
  ForwardParams params;
  Kernel kernel;
  Grid grid;
};

Memo<Prepared>& memo() {
  thread_local Memo<Prepared> of_this_thread;
  return of_this_thread;
}

CallKey key_of(const Plan& plan, const Inputs& in, const Outputs& out, const ContextScope& scope) {
  CallKey key;
  key.add(scope.id());
  key.add_plan(plan, plan.forward);
  key.add_inputs(in);
  key.add_tensor(out.o);
  key.add_tensor(out.lse);
  return key;
}

Status launch_prepared(const DeviceContext& device, const Prepared& prepared, const Inputs& in,
                       void* stream) {
  ForwardParams p = prepared.params;
  p.dropout_key = dropout_key(in.dropout_seed, in.dropout_offset);
  return launch(device, prepared.kernel, prepared.grid, stream, &p);
}

// Whether two neighbouring keys of a bias, the first of them even, lie in one aligned word.
bool loads_in_pairs(const Tensor& bias) {
  if (!bias.given() || bias.strides[3] != 1) return false;
  for (int i = 0; i < 3; ++i)
    if (bias.shape[i] != 1 && bias.strides[i] % 2) return false;
  return reinterpret_cast<std::uintptr_t>(bias.data) % (2 * size_of(bias.dtype)) == 0;
}

Status prepare(const Plan& plan, const Inputs& in, const Outputs& out, const DeviceContext& device,
               Prepared& prepared) {
  ForwardConfig config = forward_config(plan.problem, plan.options);
  config.bias_pairs &= loads_in_pairs(in.bias);
  ForwardParams& p = prepared.params;
  fill_work(p, plan.problem, config, device.multiprocessors);
  if (p.work_items == 0 || !has_numbers(out.o)) return {};
  fill_outputs(p, out);
  fill_scores(p, plan.problem, in);
  fill_lengths(p, in);
  if (const Status s = fill_maps(p, **driver(), config, in); !s.ok()) return s;
  const auto kernel = find_kernel(device, config_text(config), config.smem_bytes(),
                                  [&] { return kernel_source(config); });
  if (!kernel.ok()) return kernel.status();
  prepared.kernel = *kernel;
  prepared.grid = {static_cast<unsigned>(std::min(p.work_items, device.multiprocessors)),
                   static_cast<unsigned>(config.threads()),
                   static_cast<unsigned>(config.smem_bytes()), Start::kOverlapsPrevious};
  return {};
}

}  // namespace

std::optional<Status> forward_again(const Plan& plan, const Inputs& in, const Outputs& out,
                                    const Launch& launch_at) {
  const auto d = driver();
  if (!d.ok()) return {};
  const auto device = device_context(plan.device.index);
  if (!device.ok()) return {};
  const ContextScope scope(**d, **device);
  const Prepared* const prepared = memo().find(key_of(plan, in, out, scope));
  if (!prepared) return {};
  return launch_prepared(**device, *prepared, in, launch_at.stream);
}

Status forward(const Plan& plan, const Inputs& in, const Outputs& out, const Launch& launch_at) {
  const auto d = driver();
  if (!d.ok()) return d.status();
  const auto device = hopper_device(plan.device.index);
  if (!device.ok()) return device.status();
  const ContextScope scope(**d, **device);
  Status s = check_tensors(**d, **device, in, out);
  if (!s.ok()) return s;
  Prepared prepared{};
  s = prepare(plan, in, out, **device, prepared);
  if (!s.ok() || prepared.grid.ctas == 0) return s;
  memo().keep(key_of(plan, in, out, scope), prepared);
  return launch_prepared(**device, prepared, in, launch_at.stream);
}

}  // namespace tilewise::cuda
