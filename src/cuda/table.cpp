#include "cuda/table.h"

#include <algorithm>

#include "core/format.h"
#include "cuda/device/element.h"
#include "cuda/schedule.h"

namespace tilewise::cuda {
namespace {

using sm90::Band;
using sm90::BiasType;
using sm90::ForwardConfig;
using sm90::Order;

Band band_of(const Mask& m) {
  if (m.left >= 0) return Band::kBoth;
  return m.causal || m.right >= 0 ? Band::kRight : Band::kFull;
}

BiasType bias_of(const Bias& bias) {
  if (!bias.present) return BiasType::kNone;
  return bias.dtype == DType::kF32   ? BiasType::kF32
         : bias.dtype == DType::kF16 ? BiasType::kF16
                                     : BiasType::kBf16;
}

// Whether the scale can't be folded into the maximum, or into ALiBi's slopes, which are divided by
// it.
bool general_scale(const Problem& p) {
  constexpr float kLeastForSlopes = 1e-20f;
  return p.scale && *p.scale <= (p.alibi == Alibi::kNone ? 0.0f : kLeastForSlopes);
}

Extras extras_of(const Problem& p) {
  if (p.bias.present || p.dropout_p > 0 || p.softcap != 0 || general_scale(p))
    return Extras::kRegisters;
  return p.alibi == Alibi::kNone ? Extras::kNone : Extras::kAlibi;
}

bool varlen(const Varlen& v) {
  return v.cu_seqlens_q || v.cu_seqlens_kv || v.seqused_q || v.seqused_kv;
}

// Tiles of three consumers are 7% faster than those of two, unless queries fill them worse.
bool fill_well(const ForwardRow& row, const Problem& p) {
  constexpr double kMostWaste = 1.12;
  constexpr std::int64_t kTwoConsumers = 128;
  if (varlen(p.varlen)) return true;  // the longest says little of the others
  return static_cast<double>(round_up<std::int64_t>(p.seq_q, row.tile_q)) <=
         kMostWaste * static_cast<double>(round_up(p.seq_q, kTwoConsumers));
}

}  // namespace

const std::vector<ForwardRow>& forward_table() {
  constexpr auto kNone = Extras::kNone, kAlibi = Extras::kAlibi;
  //  D    band         extras Sk >=  M    N   stages  Q in registers
  static const std::vector<ForwardRow> rows = {
      {64, Band::kFull, kNone, 0, 192, 128, 2, false},
      {64, Band::kFull, kAlibi, 0, 128, 128, 4, true},
      {64, Band::kRight, kNone, 1536, 192, 128, 2, false},
      {64, Band::kRight, kAlibi, 0, 128, 128, 4, true},
      {64, Band::kBoth, kAlibi, 0, 128, 128, 4, true},
      {128, Band::kFull, kNone, 1536, 192, 80, 3, false},
      {128, Band::kFull, kAlibi, 0, 128, 128, 3, true},
      {128, Band::kRight, kAlibi, 0, 128, 128, 3, true},
      {128, Band::kBoth, kAlibi, 0, 128, 128, 3, true},
      {192, Band::kFull, kAlibi, 0, 128, 96, 2, false},
      {192, Band::kRight, kAlibi, 0, 128, 96, 2, false},
      {192, Band::kBoth, kAlibi, 0, 128, 96, 2, false},
      {256, Band::kFull, kAlibi, 0, 128, 80, 2, false},
      {256, Band::kRight, kAlibi, 0, 128, 64, 2, false},
      {256, Band::kBoth, kAlibi, 0, 128, 64, 2, false},
      // For every mask; smaller tiles leave registers for a tile of bias, for Philox or tanh.
      {64, Band::kBoth, Extras::kRegisters, 0, 128, 128, 3, false},
      {128, Band::kBoth, Extras::kRegisters, 0, 128, 96, 3, false},
      {192, Band::kBoth, Extras::kRegisters, 0, 128, 64, 2, false},
      {256, Band::kBoth, Extras::kRegisters, 0, 128, 32, 2, false},
  };
  return rows;
}

bool too_many_tiles(std::int64_t batch, std::int64_t heads, std::int64_t rows) {
  constexpr double kMostItems = 1 << 30;
  return static_cast<double>(batch) * static_cast<double>(heads) *
             (static_cast<double>(rows) / 64 + 1) >
         kMostItems;
}

std::string why_not_forward(const Problem& p) {
  if (p.dtype == DType::kF32) return "needs f16 or bf16 inputs";
  if (p.out_dtype && *p.out_dtype != p.dtype) return "writes O in the input dtype only";
  if (p.head_dim % 8 || p.head_dim_v % 8) return "needs head dims that are multiples of 8";
  if (p.head_dim > 256 || p.head_dim_v > 256) return "needs head dims of at most 256";
  if (std::max(p.seq_q, p.seq_kv) >= 1 << 29) return "takes sequences shorter than 2^29";
  if (too_many_tiles(p.batch, p.heads_q, p.seq_q)) return "takes at most 2^30 tiles of 64 queries";
  return {};
}

ForwardConfig forward_config(const Problem& p, const ForwardRow& row) {
  ForwardConfig c;
  c.element = p.dtype == DType::kBF16 ? Element::kBf16 : Element::kF16;
  c.head_dim = static_cast<int>(round_up<std::int64_t>(std::max<std::int64_t>(p.head_dim, 1), 16));
  c.head_dim_v =
      static_cast<int>(round_up<std::int64_t>(std::max<std::int64_t>(p.head_dim_v, 1), 16));
  c.tile_q = row.tile_q;
  c.tile_kv = row.tile_kv;
  c.stages = row.stages;
  c.q_in_registers = row.q_in_registers;
  c.band = band_of(p.mask);
  // Packed sequences, long ones and short ones: dealt back and forth, too.
  c.order = c.band == Band::kRight || p.varlen.cu_seqlens_q ? Order::kLongestFirst : Order::kLinear;
  c.varlen = varlen(p.varlen);
  c.general_scale = general_scale(p);
  c.softcap = p.softcap != 0;
  c.alibi = p.alibi != Alibi::kNone;
  c.bias = bias_of(p.bias);
  c.bias_pairs = p.bias.present && !p.bias.broadcast_kv && p.seq_kv % 2 == 0;
  c.sink = p.sink;
  // Softcap beside a tile of bias has no registers for as many keys.
  if (c.softcap && c.bias != BiasType::kNone) c.tile_kv = std::max(32, c.tile_kv * 3 / 4 / 16 * 16);
  c.dropout = p.dropout_p > 0;
  const MaskShape mask{p.seq_q,     p.seq_kv,     p.mask.causal,
                       p.mask.left, p.mask.right, p.mask.align == Align::kBottomRight};
  if (!c.dropout && p.heads_kv > 0)
    c.packed_heads = packed_heads({p.heads_q / p.heads_kv, make_band(mask), c.tile_q, c.tile_kv});
  return c;
}

ForwardConfig forward_config(const Problem& p, const Options&) {
  const Band band = band_of(p.mask);
  const Extras extras = extras_of(p);
  const auto d = std::max(p.head_dim, p.head_dim_v);
  for (const ForwardRow& row : forward_table())
    if (d <= row.max_head_dim && row.extras >= extras &&
        (row.extras == Extras::kRegisters || row.band == band) && p.seq_kv >= row.min_seq_kv &&
        fill_well(row, p))
      return forward_config(p, row);
  return forward_config(p, forward_table().back());
}

std::string config_text(const ForwardConfig& c) {
  static const char* const kBands[] = {"kFull", "kRight", "kBoth"};
  static const char* const kBias[] = {"kNone", "kF32", "kF16", "kBf16"};
  return format_text(
      ".element = Element::{}, .head_dim = {}, .head_dim_v = {}, .tile_q = {}, .tile_kv = {}, "
      ".packed_heads = {}, .stages = {}, .q_stages = {}, .band = Band::{}, .order = Order::{}, "
      ".q_in_registers = {}, .ping_pong = {}, .polynomial_of_8 = {}, .varlen = {}, "
      ".general_scale = {}, .softcap = {}, .alibi = {}, .bias = BiasType::{}, .bias_pairs = {}, "
      ".sink = {}, "
      ".dropout = {}",
      c.element == Element::kBf16 ? "kBf16" : "kF16", c.head_dim, c.head_dim_v, c.tile_q, c.tile_kv,
      c.packed_heads, c.stages, c.q_stages, kBands[static_cast<int>(c.band)],
      c.order == Order::kLinear ? "kLinear" : "kLongestFirst", c.q_in_registers, c.ping_pong,
      c.polynomial_of_8, c.varlen, c.general_scale, c.softcap, c.alibi,
      kBias[static_cast<int>(c.bias)], c.bias_pairs, c.sink, c.dropout);
}

std::string kernel_source(const ForwardConfig& c) {
  return format_text(
      "#include \"cuda/device/ptx/wgmma/n{}.h\"\n"
      "#include \"cuda/device/ptx/wgmma/n{}.h\"\n"
      "#include \"cuda/device/sm90/forward.h\"\n"
      "namespace tilewise::sm90 {{\n"
      "constexpr ForwardConfig kConfig{{{}}};\n"
      "extern \"C\" __global__ void __launch_bounds__(kConfig.threads(), 1)\n"
      "    tilewise_kernel(const __grid_constant__ ForwardParams params) {{\n"
      "  forward<kConfig>(params);\n"
      "}}\n"
      "}}  // namespace tilewise::sm90\n",
      c.tile_kv, c.head_dim_v, config_text(c));
}

}  // namespace tilewise::cuda
