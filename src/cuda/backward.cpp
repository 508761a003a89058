#include "cuda/backward.h"

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "cuda/backward_table.h"
#include "cuda/device/sm90/backward_params.h"
#include "cuda/product_scale.h"
#include "cuda/runtime/call_key.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/memory_check.h"
#include "cuda/runtime/tensor_map.h"

namespace tilewise::cuda {
namespace {

using sm90::BackwardConfig;
using sm90::BackwardParams;
using sm90::RowTensor;
using sm90::StatTensor;

Status check_tensors(const Driver& d, const DeviceContext& device, const Inputs& in,
                     const Gradients& g, const Tensor& workspace) {
  const NamedTensor all[] = {{"q", in.q},
                             {"k", in.k},
                             {"v", in.v},
                             {"o", g.o},
                             {"d_o", g.d_o},
                             {"dq", g.dq},
                             {"dk", g.dk},
                             {"dv", g.dv},
                             {"lse", g.lse},
                             {"d_lse", g.d_lse},
                             {"dbias", g.dbias},
                             {"dsink", g.dsink},
                             {"alibi_slopes", in.alibi_slopes},
                             {"bias", in.bias},
                             {"sink", in.sink},
                             {"cu_seqlens_q", in.cu_seqlens_q},
                             {"cu_seqlens_kv", in.cu_seqlens_kv},
                             {"seqused_q", in.seqused_q},
                             {"seqused_kv", in.seqused_kv},
                             {"launch.workspace", workspace}};
  Status s = check_memory(d, device, all);
  if (s.ok()) s = check_addressable(std::span(all).first(8));
  return s.ok() ? check_lengths(in) : s;
}

RowTensor rows(const Tensor& t) {
  if (!t.given()) return {};
  return {t.data, t.rank == 4 ? t.strides[0] : 0, t.strides[t.rank - 3], t.strides[t.rank - 2]};
}

StatTensor statistics(const Tensor& t) {
  if (!t.given()) return {};
  return {static_cast<const float*>(t.data), t.rank == 3 ? t.strides[0] : 0, t.strides[t.rank - 2],
          t.strides[t.rank - 1]};
}

void fill_tensors(BackwardParams& p, const Inputs& in, const Gradients& g) {
  p.o = rows(g.o), p.d_o_rows = rows(g.d_o);
  p.dq = rows(g.dq), p.dk = rows(g.dk), p.dv = rows(g.dv);
  p.lse = statistics(g.lse), p.d_lse = statistics(g.d_lse);
  const auto lengths = [](const Tensor& t) { return static_cast<const std::int32_t*>(t.data); };
  p.cu_seqlens_q = lengths(in.cu_seqlens_q);
  p.cu_seqlens_kv = lengths(in.cu_seqlens_kv);
  p.seqused_q = lengths(in.seqused_q);
  p.seqused_kv = lengths(in.seqused_kv);
}

void fill_scores(BackwardParams& p, const Problem& problem, const Inputs& in, const Gradients& g) {
  p.scale = scale_of(problem);
  p.scale_log2 = product_scale(problem) * kLog2e;
  if (problem.softcap != 0) {
    p.softcap_log2 = problem.softcap * kLog2e;
    p.scale_over_softcap = product_scale(problem) / problem.softcap;
  }
  if (in.alibi_slopes.given()) {
    p.alibi_slopes = static_cast<const float*>(in.alibi_slopes.data);
    p.alibi_stride_b = in.alibi_slopes.rank == 2 ? in.alibi_slopes.strides[0] : 0;
    p.alibi_stride_h = in.alibi_slopes.strides[in.alibi_slopes.rank - 1];
  }
  if (problem.bias.present) {
    const auto stride = [&](int i) { return in.bias.shape[i] == 1 ? 0 : in.bias.strides[i]; };
    p.bias = in.bias.data;
    p.bias_stride_b = stride(0), p.bias_stride_h = stride(1);
    p.bias_stride_q = stride(2), p.bias_stride_kv = stride(3);
  }
  if (problem.bias.present && g.dbias.given()) {
    const Bias& b = problem.bias;
    const auto& strides = g.dbias.strides;
    p.dbias = {static_cast<float*>(g.dbias.data),
               b.broadcast_batch ? 0 : strides[0],
               b.broadcast_heads ? 0 : strides[1],
               b.broadcast_q ? 0 : strides[2],
               b.broadcast_kv ? 0 : strides[3],
               b.broadcast_batch,
               b.broadcast_heads,
               b.broadcast_q,
               b.broadcast_kv};
  }
  if (problem.sink) {
    p.sink = static_cast<const float*>(in.sink.data);
    p.sink_stride = in.sink.strides[0];
    p.dsink = static_cast<float*>(g.dsink.data);
    p.dsink_stride = g.dsink.strides[0];
  }
  p.dropout_threshold = dropout_threshold(problem.dropout_p);
  p.dropout_scale = dropout_scale(problem.dropout_p);
}

void fill_workspace(BackwardParams& p, const BackwardWorkspace& w, void* memory) {
  const auto at = [&](std::int64_t bytes) { return static_cast<std::byte*>(memory) + bytes; };
  p.tiles = static_cast<int>(w.tiles);
  p.dq_sum = reinterpret_cast<float*>(at(w.dq_sum));
  p.stats = reinterpret_cast<float*>(at(w.stats));
  p.turns = reinterpret_cast<std::int32_t*>(at(w.turns));
  p.dsink_parts = reinterpret_cast<float*>(at(w.dsink_parts));
  p.far_tiles = reinterpret_cast<std::int32_t*>(at(w.far_tiles));
  p.items_taken = reinterpret_cast<std::int32_t*>(at(w.items_taken));
}

// kv heads that are worked on at once: few enough that what their query heads read and add to
// stays in L2, enough that every multiprocessor has two items of them.
int section_heads(const Problem& problem, const BackwardConfig& config, int kv_tiles, int ctas) {
  constexpr std::int64_t kL2Bytes = 36 << 20;  // of 50 MiB
  const std::int64_t group = problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv);
  const std::int64_t bytes = std::max<std::int64_t>(
      1, problem.seq_q * (config.head_dim * 6 + config.head_dim_v * 2) * group);
  const std::int64_t busy = ceil_div<std::int64_t>(2 * ctas, std::max(kv_tiles, 1));
  const std::int64_t heads = std::max<std::int64_t>(1, problem.batch * problem.heads_kv);
  return static_cast<int>(std::clamp<std::int64_t>(std::min(kL2Bytes / bytes, busy), 1, heads));
}

void fill_work(BackwardParams& p, const Problem& problem, const BackwardConfig& config, int ctas) {
  p.batch = static_cast<int>(problem.batch);
  p.heads_q = static_cast<int>(problem.heads_q);
  p.heads_kv = static_cast<int>(problem.heads_kv);
  p.heads_per_kv = static_cast<int>(problem.heads_q / std::max<std::int64_t>(1, problem.heads_kv));
  p.head_dim = static_cast<int>(problem.head_dim);
  p.head_dim_v = static_cast<int>(problem.head_dim_v);
  p.seq_q = static_cast<int>(problem.seq_q);
  p.seq_kv = static_cast<int>(problem.seq_kv);
  p.q_tiles = ceil_div(p.seq_q, config.tile_q);
  p.kv_tiles = ceil_div(p.seq_kv, config.tile_kv);
  p.work_items = p.kv_tiles * p.heads_kv * p.batch;
  p.section_heads = section_heads(problem, config, p.kv_tiles, ctas);
  p.left = problem.mask.left;
  p.right = problem.mask.causal
                ? (problem.mask.right >= 0 ? std::min<std::int64_t>(problem.mask.right, 0) : 0)
                : problem.mask.right;
  p.bottom_right = problem.mask.align == Align::kBottomRight;
}

Status fill_maps(BackwardParams& p, const Driver& d, const BackwardConfig& config, const Inputs& in,
                 const Gradients& g) {
  // Without a key or a query nothing is loaded, but a map must still be one.
  const Tensor& any = has_numbers(in.q) ? in.q : in.k;
  const auto map = [&](const Tensor& t, int rows) {
    return make_tensor_map(d, has_numbers(t) ? t : any, {rows});
  };
  const auto q = map(in.q, config.tile_q), d_o = map(g.d_o, config.tile_q);
  const auto k = map(in.k, config.tile_kv), v = map(in.v, config.tile_kv);
  for (const auto* m : {&q, &d_o, &k, &v})
    if (!m->ok()) return m->status();
  p.q = *q, p.d_o = *d_o, p.k = *k, p.v = *v;
  return {};
}

int row_tiles_of(const BackwardParams& p) {
  return p.q_tiles * p.heads_q * p.batch;
}

// Turns at full masks go round (backward_work.h).
bool waits_in_circles(const BackwardConfig& config) {
  return config.additions == sm90::Additions::kFixed && config.band == sm90::Band::kFull;
}

Grid grid_of(const DeviceContext& device, const BackwardConfig& config, BackwardKernel which,
             const BackwardParams& p) {
  const auto grid = [](int ctas, int threads, int smem_bytes, Start start) {
    return Grid{static_cast<unsigned>(ctas), static_cast<unsigned>(threads),
                static_cast<unsigned>(smem_bytes), start};
  };
  const int row_tiles = row_tiles_of(p);
  // Replay, main and finish start beside the end of the kernel before them, if there is one.
  const Start follows = row_tiles > 0 ? Start::kOverlapsPrevious : Start::kAfterPrevious;
  switch (which) {
    case BackwardKernel::kPrepare:
      return grid(row_tiles, config.kRowThreads, 0, Start::kAfterPrevious);
    case BackwardKernel::kReplay:
      return grid(std::min(row_tiles, 2 * device.multiprocessors), config.kRecomputeThreads,
                  config.recompute_smem_bytes(), follows);
    case BackwardKernel::kMain:
      return grid(std::min(p.work_items, device.multiprocessors), config.kThreads,
                  config.smem_bytes(), waits_in_circles(config) ? Start::kAllAtOnce : follows);
    case BackwardKernel::kFinish:
      // Without a query there is still the sink's gradient, 0 for each head.
      return grid(row_tiles > 0 || !p.dsink ? row_tiles : p.heads_q, config.kRowThreads, 0,
                  follows);
    case BackwardKernel::kBias:
      break;
  }
  const auto& d = p.dbias;
  const int items = (d.sums_batch ? 1 : p.batch) * (d.sums_heads ? 1 : p.heads_q) *
                    (d.sums_q ? 1 : p.q_tiles) * (d.sums_kv ? 1 : p.kv_tiles);
  return grid(d.data ? items : 0, config.kRecomputeThreads, config.recompute_smem_bytes(),
              Start::kAfterPrevious);
}

// Everything that the launches need but the dropout's key.
struct Prepared {
  BackwardParams params;
  struct Part {
    Kernel kernel;
    Grid grid;  // without CTAs: nothing to do
  } parts[kBackwardKernels];
};

Memo<Prepared>& memo() {
  thread_local Memo<Prepared> of_this_thread;
  return of_this_thread;
}

CallKey key_of(const Plan& plan, const Inputs& in, const Gradients& g, const void* workspace,
               const ContextScope& scope) {
  CallKey key;
  key.add(scope.id());
  key.add_plan(plan, plan.backward);
  key.add_inputs(in);
  for (const Tensor* t : {&g.o, &g.lse, &g.d_o, &g.d_lse, &g.dq, &g.dk, &g.dv, &g.dbias, &g.dsink})
    key.add_tensor(*t);
  key.add(reinterpret_cast<std::uintptr_t>(workspace));
  return key;
}

Status prepare(const Plan& plan, const Inputs& in, const Gradients& g, const Launch& at,
               Prepared& prepared) {
  const DeviceContext& device = **hopper_device(plan.device.index);
  BackwardConfig config = backward_config(plan.problem, plan.options);
  BackwardParams& p = prepared.params;
  fill_work(p, plan.problem, config, device.multiprocessors);
  if (row_tiles_of(p) == 0) {
    // Nothing to prepare, not even the counter that work is taken from: dK and dV are zeros.
    config.band = sm90::Band::kFull;
    config.additions = sm90::Additions::kAny;
  }
  fill_tensors(p, in, g);
  fill_scores(p, plan.problem, in, g);
  fill_workspace(p, backward_workspace(plan.problem, config), at.workspace);
  Status s;
  if (has_numbers(in.q) || has_numbers(in.k)) s = fill_maps(p, **driver(), config, in, g);
  for (int i = 0; i < kBackwardKernels && s.ok(); ++i) {
    const auto which = static_cast<BackwardKernel>(i);
    Prepared::Part& part = prepared.parts[i];
    part.grid = grid_of(device, config, which, p);
    if (part.grid.ctas == 0) continue;
    const auto kernel = find_kernel(
        device, format_text("{} {}", name_of(which), config_text(kernel_config(config, which))),
        static_cast<int>(part.grid.smem_bytes), [&] { return kernel_source(config, which); });
    s = kernel.status();
    if (kernel.ok()) part.kernel = *kernel;
  }
  return s;
}

Status launch_prepared(const DeviceContext& device, const Prepared& prepared, const Inputs& in,
                       void* stream) {
  BackwardParams p = prepared.params;
  p.dropout_key = dropout_key(in.dropout_seed, in.dropout_offset);
  Status s;
  for (const Prepared::Part& part : prepared.parts)
    if (s.ok() && part.grid.ctas > 0) s = launch(device, part.kernel, part.grid, stream, &p);
  return s;
}

}  // namespace

std::optional<Status> backward_again(const Plan& plan, const Inputs& in, const Gradients& grads,
                                     const Launch& launch_at) {
  const auto d = driver();
  if (!d.ok()) return {};
  const auto device = device_context(plan.device.index);
  if (!device.ok()) return {};
  const ContextScope scope(**d, **device);
  const Prepared* const prepared = memo().find(key_of(plan, in, grads, launch_at.workspace, scope));
  if (!prepared || launch_at.workspace_bytes < plan.backward.workspace_bytes) return {};
  return launch_prepared(**device, *prepared, in, launch_at.stream);
}

Status backward(const Plan& plan, const Inputs& in, const Gradients& grads,
                const Launch& launch_at) {
  const auto d = driver();
  if (!d.ok()) return d.status();
  const auto device = hopper_device(plan.device.index);
  if (!device.ok()) return device.status();
  const ContextScope scope(**d, **device);
  Tensor workspace = make_tensor(launch_at.workspace, DType::kF32, 1);
  workspace.device = plan.device;
  Status s = check_tensors(**d, **device, in, grads, workspace);
  if (!s.ok()) return s;
  Prepared prepared{};
  s = prepare(plan, in, grads, launch_at, prepared);
  if (!s.ok()) return s;
  memo().keep(key_of(plan, in, grads, launch_at.workspace, scope), prepared);
  return launch_prepared(**device, prepared, in, launch_at.stream);
}

}  // namespace tilewise::cuda
