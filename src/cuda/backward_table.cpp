#include "cuda/backward_table.h"

#include <algorithm>
#include <iterator>

#include "core/format.h"
#include "cuda/table.h"

namespace tilewise::cuda {
namespace {

using sm90::Additions;
using sm90::BackwardConfig;
using sm90::Band;
using sm90::BiasType;

// Scores and dP, for sums of its own (device/sm90/backward_recompute.h).
bool recomputes(BackwardKernel kernel) {
  return kernel == BackwardKernel::kReplay || kernel == BackwardKernel::kBias;
}

}  // namespace

const char* name_of(BackwardKernel kernel) {
  static const char* const kNames[] = {"prepare", "replay", "main", "finish", "bias"};
  static_assert(std::size(kNames) == kBackwardKernels);
  return kNames[static_cast<int>(kernel)];
}

const std::vector<BackwardRow>& backward_table() {
  //  D   plain  wide   M    N   stages of Q, dO; in turns up to this Sk: full, banded
  static const std::vector<BackwardRow> rows = {
      {64, true, false, 128, 128, 3, 2, 2048, 4096},
      {128, true, false, 64, 128, 2, 2, 4096, 4096},
      {192, false, true, 64, 64, 2, 2, 512, 1024},
      {256, false, true, 64, 64, 2, 1, 512, 1024},
  };
  return rows;
}

std::string why_not_backward(const Problem& p) {
  if (too_many_tiles(p.batch, p.heads_kv, p.seq_kv)) return "takes at most 2^30 tiles of 64 keys";
  return why_not_forward(p);
}

BackwardConfig backward_config(const Problem& p, const Options& options) {
  const sm90::ForwardConfig forward = forward_config(p, options);  // what the mask and scores need
  const auto d = std::max<std::int64_t>({p.head_dim, p.head_dim_v, 1});
  const bool plain =
      !forward.softcap && !forward.alibi && forward.bias == BiasType::kNone && !forward.dropout;
  const auto& table = backward_table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const BackwardRow& r) {
    return d <= r.max_head_dim && (!r.plain || plain);
  });
  const BackwardRow& tiles = row == table.end() ? table.back() : *row;
  BackwardConfig c;
  c.element = forward.element;
  // Where one warpgroup gathers dK and dV, both are as wide as the wider one.
  const auto rounded = [&](std::int64_t n) {
    return static_cast<int>(
        round_up<std::int64_t>(tiles.wide ? std::max<std::int64_t>(n, 1) : d, 64));
  };
  c.head_dim = rounded(p.head_dim);
  c.head_dim_v = rounded(p.head_dim_v);
  c.tile_q = tiles.tile_q;
  c.tile_kv = tiles.tile_kv;
  c.q_stages = tiles.q_stages;
  c.do_stages = tiles.do_stages;
  c.band = forward.band;
  const int in_turns = c.band == Band::kFull ? tiles.turns_full : tiles.turns_banded;
  c.additions = options.deterministic || p.seq_kv <= in_turns ? Additions::kFixed : Additions::kAny;
  c.wide = tiles.wide;
  c.varlen = forward.varlen;
  c.softcap = forward.softcap;
  c.alibi = forward.alibi;
  c.bias = forward.bias;
  c.sink = forward.sink;
  c.dropout = forward.dropout;
  return c;
}

BackwardConfig kernel_config(BackwardConfig c, BackwardKernel kernel) {
  if (recomputes(kernel)) c.additions = Additions::kAny;
  if (recomputes(kernel) || kernel == BackwardKernel::kMain) return c;
  c.band = Band::kFull;
  c.softcap = c.alibi = c.dropout = false;
  c.bias = BiasType::kNone;
  return c;
}

std::string config_text(const BackwardConfig& c) {
  static const char* const kBands[] = {"kFull", "kRight", "kBoth"};
  static const char* const kBias[] = {"kNone", "kF32", "kF16", "kBf16"};
  return format_text(
      ".element = Element::{}, .head_dim = {}, .head_dim_v = {}, .tile_q = {}, .tile_kv = {}, "
      ".q_stages = {}, .do_stages = {}, .band = Band::{}, .additions = Additions::{}, "
      ".wide = {}, .varlen = {}, .softcap = {}, .alibi = {}, .bias = BiasType::{}, .sink = {}, "
      ".dropout = {}",
      c.element == Element::kBf16 ? "kBf16" : "kF16", c.head_dim, c.head_dim_v, c.tile_q, c.tile_kv,
      c.q_stages, c.do_stages, kBands[static_cast<int>(c.band)],
      c.additions == Additions::kAny ? "kAny" : "kFixed", c.wide, c.varlen, c.softcap, c.alibi,
      kBias[static_cast<int>(c.bias)], c.sink, c.dropout);
}

std::string kernel_source(const BackwardConfig& config, BackwardKernel kernel) {
  const BackwardConfig c = kernel_config(config, kernel);
  const bool is_main = kernel == BackwardKernel::kMain;
  std::string products;
  if (is_main || recomputes(kernel))
    for (const int n : {64, 128, 192, 256})
      if (n == 64 || n == c.tile_q || n == c.head_dim || n == c.head_dim_v)
        products += format_text("#include \"cuda/device/ptx/wgmma/n{}.h\"\n", n);
  return format_text(
      "{}#include \"cuda/device/sm90/backward{}.h\"\n"
      "namespace tilewise::sm90 {{\n"
      "constexpr BackwardConfig kConfig{{{}}};\n"
      "extern \"C\" __global__ void __launch_bounds__(kConfig.{})\n"
      "    tilewise_kernel(const __grid_constant__ BackwardParams params) {{\n"
      "  backward::{}_kernel<kConfig>(params);\n"
      "}}\n"
      "}}  // namespace tilewise::sm90\n",
      products, is_main ? "" : format_text("_{}", name_of(kernel)), config_text(c),
      is_main              ? "kThreads, 1"
      : recomputes(kernel) ? "kRecomputeThreads"
                           : "kRowThreads",
      name_of(kernel));
}

BackwardWorkspace backward_workspace(const Problem& p, const BackwardConfig& c) {
  BackwardWorkspace w;
  w.tiles = p.varlen.cu_seqlens_q
                ? first_packed_tile<std::int64_t>(p.varlen.total_q, p.batch, c.tile_q) + 1
                : p.batch * ceil_div<std::int64_t>(p.seq_q, c.tile_q);
  const std::int64_t all = w.tiles * p.heads_q;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = w.bytes;
    w.bytes += round_up<std::int64_t>(bytes, 256);
    return begin;
  };
  w.dq_sum = take(all * c.dq_elements() * 4);
  w.stats = take(all * c.tile_q * 8);
  w.turns = take(c.additions == Additions::kFixed ? all * c.dq_rounds() * 4 : 0);
  w.dsink_parts = take(c.sink ? all * 4 : 0);
  w.far_tiles = take(all * 4);
  w.items_taken = take(4);
  return w;
}

}  // namespace tilewise::cuda
