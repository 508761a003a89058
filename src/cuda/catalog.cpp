#include "cuda/catalog.h"

#include <set>

#include "core/format.h"
#include "cuda/backward_table.h"
#include "cuda/table.h"

namespace tilewise::cuda {
namespace {

using sm90::Band;
using sm90::ForwardConfig;

struct HeadDims {
  int d, dv;
};
constexpr HeadDims kUsualDims[] = {{64, 64},   {96, 96},   {128, 128},
                                   {192, 128}, {192, 192}, {256, 256}};

// A way to modify a problem, and what that asks of a row.
struct Modification {
  Extras extras;
  void (*modify)(Problem&);
};
constexpr Modification kModifications[] = {
    {Extras::kNone, [](Problem&) {}},
    {Extras::kNone, [](Problem& p) { p.sink = true; }},
    {Extras::kAlibi, [](Problem& p) { p.alibi = Alibi::kPerHead; }},
    {Extras::kRegisters, [](Problem& p) { p.scale = -1; }},
    {Extras::kRegisters, [](Problem& p) { p.softcap = 30; }},
    {Extras::kRegisters, [](Problem& p) { p.dropout_p = 0.1f; }},
    {Extras::kRegisters,
     [](Problem& p) { p.bias = {true, false, false, false, false, DType::kF32}; }},
    {Extras::kRegisters, [](Problem& p) { p.bias = {true, false, false, false, false, p.dtype}; }},
};

Mask mask_of(Band band) {
  if (band == Band::kBoth) return {true, 1024, -1, Align::kBottomRight};
  return {band == Band::kRight, -1, -1, Align::kBottomRight};
}

// "d128 bf16 causal varlen".
std::string words_of(const Problem& p, const ForwardConfig& c) {
  static const char* const kMasks[] = {"full", "causal", "window"};
  std::string name = format_text("d{}{} {} {}", c.head_dim,
                                 c.head_dim == c.head_dim_v ? "" : format_text(",{}", c.head_dim_v),
                                 name_of(p.dtype), kMasks[static_cast<int>(c.band)]);
  if (c.varlen) name += " varlen";
  if (c.sink) name += " sink";
  if (c.softcap) name += " softcap";
  if (c.alibi) name += " alibi";
  if (c.bias != sm90::BiasType::kNone) name += format_text(" bias-{}", name_of(p.bias.dtype));
  if (c.dropout) name += " dropout";
  if (c.general_scale) name += " scale";
  return name;
}

KernelSource forward_kernel(const Problem& p, const ForwardConfig& c) {
  return {format_text("forward {} {}x{}", words_of(p, c), c.tile_q, c.tile_kv), kernel_source(c)};
}

// The kernels of a backward, dBias' where there is a bias.
std::vector<KernelSource> backward_kernels(const Problem& p, const Options& options) {
  if (!why_not_backward(p).empty()) return {};
  const sm90::BackwardConfig c = backward_config(p, options);
  const std::string words =
      format_text("{}{} {}x{}", words_of(p, forward_config(p, options)),
                  c.additions == sm90::Additions::kFixed ? " turns" : "", c.tile_q, c.tile_kv);
  std::vector<KernelSource> out;
  for (int i = 0; i < kBackwardKernels; ++i)
    if (const auto kernel = static_cast<BackwardKernel>(i);
        kernel != BackwardKernel::kBias || p.bias.present)
      out.push_back(
          {format_text("backward-{} {}", name_of(kernel), words), kernel_source(c, kernel)});
  return out;
}

// The head dims of kUsualDims that a row takes: those that no narrower row would.
bool takes(const ForwardRow& row, const HeadDims& dims) {
  const int d = std::max(dims.d, dims.dv);
  if (d > row.max_head_dim) return false;
  for (const ForwardRow& other : forward_table())
    if (other.max_head_dim < row.max_head_dim && d <= other.max_head_dim) return false;
  return true;
}

class Collector {
 public:
  void add(KernelSource kernel) {
    if (seen_.insert(kernel.source).second) kernels_.push_back(std::move(kernel));
  }
  void add_row(const ForwardRow& row, Problem p) {
    const bool any_band = row.extras == Extras::kRegisters;
    for (const bool varlen : {false, true})
      for (const Band band : {Band::kFull, Band::kRight, Band::kBoth})
        for (const auto& [extras, modify] : kModifications) {
          if (any_band ? extras != row.extras : extras > row.extras || band != row.band) continue;
          Problem modified = p;
          modified.varlen.cu_seqlens_q = modified.varlen.cu_seqlens_kv = varlen;
          modified.mask = mask_of(band);
          modify(modified);
          add(forward_kernel(modified, forward_config(modified, row)));
        }
  }
  // Both orders of additions, whatever the length.
  void add_backward(Problem p) {
    constexpr std::int64_t kLong = 1 << 16;
    p.seq_kv = kLong;
    for (const bool varlen : {false, true})
      for (const Band band : {Band::kFull, Band::kRight, Band::kBoth})
        for (const bool deterministic : {false, true}) {
          p.varlen.cu_seqlens_q = p.varlen.cu_seqlens_kv = varlen;
          p.mask = mask_of(band);
          Options options;
          options.deterministic = deterministic;
          for (KernelSource& kernel : backward_kernels(p, options)) add(std::move(kernel));
        }
  }
  std::vector<KernelSource> take() { return std::move(kernels_); }

 private:
  std::set<std::string> seen_;
  std::vector<KernelSource> kernels_;
};

}  // namespace

std::vector<KernelSource> kernels_of(const Problem& problem, const Options& options) {
  if (!why_not_forward(problem).empty()) return {};
  std::vector<KernelSource> out = {forward_kernel(problem, forward_config(problem, options))};
  for (KernelSource& kernel : backward_kernels(problem, options)) out.push_back(std::move(kernel));
  return out;
}

std::vector<KernelSource> usual_kernels() {
  Collector all;
  for (const HeadDims& dims : kUsualDims)
    for (const ForwardRow& row : forward_table()) {
      if (!takes(row, dims)) continue;
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        Problem p;
        p.dtype = dtype;
        p.head_dim = dims.d;
        p.head_dim_v = dims.dv;
        all.add_row(row, p);
      }
    }
  for (const HeadDims& dims : kUsualDims)
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Problem p;
      p.dtype = dtype;
      p.head_dim = dims.d;
      p.head_dim_v = dims.dv;
      all.add_backward(p);
    }
  return all.take();
}

}  // namespace tilewise::cuda
