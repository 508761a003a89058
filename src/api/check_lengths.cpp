#include "api/check_lengths.h"

#include "core/format.h"
#include "core/invalid.h"

namespace tilewise {
namespace {

std::int64_t i32_at(const Tensor& t, std::int64_t i) {
  return static_cast<const std::int32_t*>(t.data)[i * t.strides[0]];
}

// One side's lengths: queries or keys.
struct Lengths {
  const char* cu_name;
  const char* used_name;
  const Tensor& cu_seqlens;
  const Tensor& seqused;
  std::int64_t total, longest;
};

Status check_cu_seqlens(std::int64_t batch, const Lengths& l) {
  if (i32_at(l.cu_seqlens, 0) != 0)
    return invalid(format_text("{}[0] is {}; accepted: 0", l.cu_name, i32_at(l.cu_seqlens, 0)));
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t first = i32_at(l.cu_seqlens, b), next = i32_at(l.cu_seqlens, b + 1);
    if (next < first || next - first > l.longest)
      return invalid(format_text(
          "{}[{}] is {} after {}; accepted: {} to {} (never falling, at most {} rows each)",
          l.cu_name, b + 1, next, first, first, first + l.longest, l.longest));
  }
  if (const std::int64_t end = i32_at(l.cu_seqlens, batch); end != l.total)
    return invalid(format_text("{} ends at {}; accepted: the total number of rows, {}", l.cu_name,
                               end, l.total));
  return {};
}

Status check_seqused(std::int64_t batch, const Lengths& l) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t used = i32_at(l.seqused, b);
    const std::int64_t room =
        l.cu_seqlens.given() ? i32_at(l.cu_seqlens, b + 1) - i32_at(l.cu_seqlens, b) : l.longest;
    if (used < 0 || used > room)
      return invalid(format_text("{}[{}] is {}; accepted: 0 to {}", l.used_name, b, used, room));
  }
  return {};
}

}  // namespace

Status check_lengths(const Problem& p, const Inputs& in) {
  const Lengths sides[] = {
      {"cu_seqlens_q", "seqused_q", in.cu_seqlens_q, in.seqused_q, p.varlen.total_q, p.seq_q},
      {"cu_seqlens_kv", "seqused_kv", in.cu_seqlens_kv, in.seqused_kv, p.varlen.total_kv,
       p.seq_kv}};
  for (const Lengths& l : sides) {
    Status s;
    if (l.cu_seqlens.given()) s = check_cu_seqlens(p.batch, l);
    if (s.ok() && l.seqused.given()) s = check_seqused(p.batch, l);
    if (!s.ok()) return s;
  }
  return {};
}

}  // namespace tilewise
