#include "plan/check_problem.h"

#include <cmath>
#include <utility>

#include "core/format.h"
#include "core/invalid.h"
#include "core/mask.h"

namespace tilewise {
namespace {

// Beyond these nothing could be computed in a lifetime, and below them no product of sizes that the
// library forms overflows 64 bits.
constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 31;
constexpr double kMaxRows = 0x1p40;  // batch * heads * length of one tensor

struct Bound {
  const char* name;
  std::int64_t value, least, most;
};

Status check_sizes(const Problem& p) {
  const Bound bounds[] = {
      {"batch", p.batch, 0, kMaxCount},
      {"heads_q", p.heads_q, 0, kMaxCount},
      {"heads_kv", p.heads_kv, 0, kMaxCount},
      {"seq_q", p.seq_q, 0, kMaxLength},
      {"seq_kv", p.seq_kv, 0, kMaxLength},
      {"head_dim", p.head_dim, 1, kMaxHeadDim},
      {"head_dim_v", p.head_dim_v, 1, kMaxHeadDim},
      {"varlen.total_q", p.varlen.total_q, 0, kMaxLength},
      {"varlen.total_kv", p.varlen.total_kv, 0, kMaxLength},
      {"mask.left", p.mask.left, -1, kMaxLength},
      {"mask.right", p.mask.right, -1, kMaxLength},
  };
  for (const Bound& b : bounds)
    if (b.value < b.least || b.value > b.most)
      return invalid(format_text("{} is {}; accepted: {} to {}", b.name, b.value, b.least, b.most));
  if (p.heads_q > 0 && (p.heads_kv == 0 || p.heads_q % p.heads_kv != 0))
    return invalid(format_text("heads_kv is {}; accepted: a divisor of heads_q, which is {}",
                               p.heads_kv, p.heads_q));
  const double batch = static_cast<double>(p.batch);
  const double q_rows = batch * static_cast<double>(p.heads_q) * static_cast<double>(p.seq_q);
  const double kv_rows = batch * static_cast<double>(p.heads_kv) * static_cast<double>(p.seq_kv);
  for (const auto& [name, rows] : {std::pair{"q", q_rows}, std::pair{"kv", kv_rows}})
    if (rows > kMaxRows)
      return invalid(format_text("batch * heads_{0} * seq_{0} is {1:.3g}; accepted: up to {2:.3g}",
                                 name, rows, kMaxRows));
  return {};
}

Status check_dtype(const char* name, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) return {};
  return invalid(format_text("{} is {}; accepted: f32, f16, bf16", name, name_of(dtype)));
}

// The kernels multiply with the scale in units of log2, and with one over the softcap: float32 must
// hold both, and some digits.
constexpr float kMostScale = 1e38f, kLeastSoftcap = 1e-37f;

Status check_scores(const Problem& p) {
  if (p.scale && !(std::abs(*p.scale) <= kMostScale))
    return invalid(format_text("scale is {}; accepted: a number of at most {} either way", *p.scale,
                               kMostScale));
  if (!std::isfinite(p.softcap) || p.softcap < 0 || (p.softcap > 0 && p.softcap < kLeastSoftcap))
    return invalid(format_text("softcap is {}; accepted: 0 (off) or a finite number from {} on",
                               p.softcap, kLeastSoftcap));
  if (!(p.dropout_p >= 0 && p.dropout_p < 1))
    return invalid(format_text("dropout_p is {}; accepted: [0, 1)", p.dropout_p));
  return {};
}

}  // namespace

Status check_device(Device device) {
  if (device.kind == Device::Kind::kCpu && device.index != 0)
    return invalid(format_text("device.index is {}; accepted for the CPU: 0", device.index));
  if (device.index < 0)
    return invalid(format_text("device.index is {}; accepted: 0 or more", device.index));
  return {};
}

Status check_problem(const Problem& p) {
  Status s = check_sizes(p);
  if (s.ok()) s = check_dtype("dtype", p.dtype);
  if (s.ok() && p.out_dtype) s = check_dtype("out_dtype", *p.out_dtype);
  if (s.ok() && p.bias.present) s = check_dtype("bias.dtype", p.bias.dtype);
  if (s.ok()) s = check_scores(p);
  return s;
}

Status check_options(const Options& o) {
  if (o.threads < 0 || o.threads > 4096)
    return invalid(
        format_text("threads is {}; accepted: 0 (as many as OpenMP gives) to 4096", o.threads));
  if (o.fast_memory_bytes < 0)
    return invalid(format_text("fast_memory_bytes is {}; accepted: 0 (the device's) or more",
                               o.fast_memory_bytes));
  return {};
}

}  // namespace tilewise
