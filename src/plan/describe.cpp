// Plan::describe: the plan in words.

#include <cmath>

#include "core/bytes_text.h"
#include "core/format.h"
#include "cpu/registry.h"
#include "cuda/table.h"
#include "plan/io_model.h"
#include "plan/problem_words.h"

namespace tilewise {
namespace {

std::string flops(double n) {
  static const char* const kUnits[] = {"", "K", "M", "G", "T", "P", "E"};
  int unit = 0;
  while (n >= 1000 && unit < 6) n /= 1000, ++unit;
  return format_text("{:.4g} {}FLOP", n, kUnits[unit]);
}

std::string mask_words(const Mask& m) {
  std::string out = m.causal ? "causal" : "";
  auto side = [](std::int64_t n) { return n < 0 ? std::string("all") : std::to_string(n); };
  if (m.left >= 0 || m.right >= 0)
    out += format_text("{}window ({}, {})", out.empty() ? "" : " + ", side(m.left), side(m.right));
  if (out.empty()) return "every key visible";
  return out + (m.align == Align::kBottomRight ? ", aligned bottom-right" : ", aligned top-left");
}

std::string modifier_words(const Problem& p) {
  std::string out;
  auto add = [&](const std::string& s) { out += (out.empty() ? "" : ", ") + s; };
  if (p.scale) add(format_text("scale {}", *p.scale));
  if (p.softcap != 0) add(format_text("softcap {}", p.softcap));
  if (p.alibi != Alibi::kNone) add("ALiBi");
  if (p.bias.present)
    add(format_text("bias {} (B={}, Hq={}, Sq={}, Sk={})", name_of(p.bias.dtype),
                    p.bias.broadcast_batch ? 1 : p.batch, p.bias.broadcast_heads ? 1 : p.heads_q,
                    p.bias.broadcast_q ? 1 : p.seq_q, p.bias.broadcast_kv ? 1 : p.seq_kv));
  if (p.sink) add("sink");
  if (p.dropout_p > 0) add(format_text("dropout {}", p.dropout_p));
  if (p.varlen.cu_seqlens_q) add(format_text("packed queries ({} in all)", p.varlen.total_q));
  if (p.varlen.cu_seqlens_kv) add(format_text("packed keys ({} in all)", p.varlen.total_kv));
  if (p.varlen.seqused_q || p.varlen.seqused_kv) add("seqused");
  return out;
}

void append_traffic(std::string& out, const char* order, double n, double least) {
  out += format_text("      {:<20} {:>10}  {:6.1f} x the least\n", order, bytes_text(n),
                     least > 0 ? n / least : 0.0);
}

// What f16 and f32 become on bf16 units.
void append_products(std::string& out, const Problem& problem, const PassPlan& pass) {
  const int parts = cpu::operand_parts(problem, pass);
  if (pass.kernel != "fa2" || parts < 2) return;
  out += format_text(
      "    products: {} as {} bf16 parts on {}, faster than in f32 and within the "
      "same bounds; isa avx512 keeps f32 products\n",
      name_of(problem.dtype), parts, pass.isa);
}

void append_pass(std::string& out, Pass which, const Problem& problem, const PassPlan& pass) {
  const char* const name = which == Pass::kForward ? "forward" : "backward";
  if (pass.kernel.empty()) {
    out += format_text("{}: no kernel\n", name);
  } else {
    out += format_text("{}: kernel {} on {} with {} thread{}, tiles of {} queries x {} keys\n",
                       name, pass.kernel, pass.isa, pass.threads, pass.threads == 1 ? "" : "s",
                       pass.tile_q, pass.tile_kv);
    if (pass.packed_heads > 1)
      out +=
          format_text("    each tile holds {} queries of {} heads, which share keys and values\n",
                      pass.tile_q / pass.packed_heads, pass.packed_heads);
    if (pass.kernel == cuda::kForwardKernel)
      out += format_text("    {}: {}\n", pass.kernel, cuda::kForwardSummary);
    for (const cpu::KernelRow& row : cpu::kernel_table())
      if (pass.kernel == row.name)
        out += format_text("    {}: {}\n", row.name,
                           which == Pass::kForward ? row.summary : row.backward_summary);
    if (which == Pass::kForward) append_products(out, problem, pass);
    out += format_text("    workspace {}, {}\n",
                       bytes_text(static_cast<double>(pass.workspace_bytes)), flops(pass.flops));
    out += format_text("    slow-memory traffic with {} of fast memory (least possible {}):\n",
                       bytes_text(pass.io.fast_memory_bytes), bytes_text(pass.io.least_bytes));
    append_traffic(out, "standard: all scores", pass.io.standard_bytes, pass.io.least_bytes);
    append_traffic(out, "fa1: keys outside", pass.io.fa1_bytes, pass.io.least_bytes);
    append_traffic(out, "fa2: queries outside", pass.io.fa2_bytes, pass.io.least_bytes);
  }
  for (const Refusal& r : pass.passed_over)
    out += format_text("    passed over {}: {}\n", r.kernel, r.reason);
}

// `joint` stands between the sizes and what modifies the scores.
std::string problem_words(const Problem& p, const char* joint) {
  std::string out =
      format_text("attention {}: batch {}, heads {} over {}, Sq {}, Sk {}, D {}, Dv {}; {}",
                  name_of(p.dtype), p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_kv, p.head_dim,
                  p.head_dim_v, mask_words(p.mask));
  if (const std::string words = modifier_words(p); !words.empty()) out += joint + ("with " + words);
  return out;
}

}  // namespace

std::string problem_words(const Problem& problem) {
  return problem_words(problem, " ");
}

std::string Plan::describe() const {
  std::string out = problem_words(problem, "\n    ") + "\n";
  append_pass(out, Pass::kForward, problem, forward);
  append_pass(out, Pass::kBackward, problem, backward);
  return out;
}

}  // namespace tilewise
