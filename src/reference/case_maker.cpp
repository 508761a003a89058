// Draws single cases; grid.cpp decides which.
#include <algorithm>
#include <numeric>

#include "core/format.h"
#include "reference/grid.h"

namespace tilewise::reference {

const std::vector<std::string>& feature_names() {
  static const std::vector<std::string> names = {
      "causal", "causal-top-left", "window", "window-left", "window-right", "softcap", "scale",
      "alibi",  "alibi-b",         "bias",   "bias-inf",    "sink",         "dropout", "dlse",
      "out-f32"};
  return names;
}

DType CaseMaker::any_dtype() {
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  return kTypes[pick(0, 2)];
}

std::vector<std::string> CaseMaker::any_features(int most) {
  std::vector<std::string> chosen;
  const auto& names = feature_names();
  for (std::int64_t n = pick(0, most); n > 0; --n)
    chosen.push_back(names[pick(0, static_cast<std::int64_t>(names.size()) - 1)]);
  return chosen;
}

void CaseMaker::apply_bias(Case& c) {
  Bias& b = c.problem.bias;
  b.present = true;
  b.broadcast_batch = pick(0, 1);
  b.broadcast_heads = pick(0, 1);
  b.broadcast_q = pick(0, 3) == 0;
  b.broadcast_kv = pick(0, 3) == 0;
  b.dtype = pick(0, 1) ? c.problem.dtype : DType::kF32;
}

void CaseMaker::apply(const std::string& feature, Case& c) {
  Problem& p = c.problem;
  if (feature == "causal") p.mask.causal = true;
  if (feature == "causal-top-left") p.mask.causal = true, p.mask.align = Align::kTopLeft;
  if (feature == "window") p.mask.left = pick(0, 40), p.mask.right = pick(0, 40);
  if (feature == "window-left") p.mask.left = pick(0, 70);
  if (feature == "window-right") p.mask.right = pick(0, 70);
  if (feature == "softcap") p.softcap = 0.5f * static_cast<float>(pick(1, 60));
  if (feature == "scale") p.scale = 0.01f * static_cast<float>(pick(-20, 40)) + 0.005f;
  if (feature == "alibi") p.alibi = Alibi::kPerHead;
  if (feature == "alibi-b") p.alibi = Alibi::kPerBatchAndHead;
  if (feature == "bias" || feature == "bias-inf") apply_bias(c);
  if (feature == "bias-inf") c.hiding_bias = true;
  if (feature == "sink") p.sink = true;
  if (feature == "dropout") p.dropout_p = 0.05f * static_cast<float>(pick(1, 18));
  if (feature == "dlse") c.d_lse = true;
  if (feature == "out-f32") p.out_dtype = DType::kF32;
}

std::vector<std::int32_t> CaseMaker::lengths(std::int64_t batch, std::int64_t longest,
                                             LengthPattern pattern) {
  std::vector<std::int32_t> n(batch);
  for (auto& x : n) x = static_cast<std::int32_t>(pick(0, longest));
  if (batch == 0) return n;
  if (pattern == LengthPattern::kAllZero) std::fill(n.begin(), n.end(), 0);
  if (pattern == LengthPattern::kZeroFirst) n.front() = 0;
  if (pattern == LengthPattern::kZeroMiddle) n[batch / 2] = 0;
  if (pattern == LengthPattern::kZeroLast) n.back() = 0;
  if (pattern == LengthPattern::kOneLongManyTiny) {
    for (auto& x : n) x = static_cast<std::int32_t>(pick(0, std::min<std::int64_t>(3, longest)));
    n[pick(0, batch - 1)] = static_cast<std::int32_t>(longest);
  }
  return n;
}

void CaseMaker::apply_varlen(Case& c, LengthPattern pattern) {
  Problem& p = c.problem;
  Varlen& v = p.varlen;
  do {
    v.cu_seqlens_q = pick(0, 1), v.cu_seqlens_kv = pick(0, 1);
    v.seqused_q = pick(0, 2) == 0, v.seqused_kv = pick(0, 2) == 0;
  } while (!v.cu_seqlens_q && !v.cu_seqlens_kv && !v.seqused_q && !v.seqused_kv);

  const auto side = [&](bool packed, bool used, std::int64_t longest, std::int64_t& total,
                        std::vector<std::int32_t>& cu, std::vector<std::int32_t>& n) {
    std::vector<std::int32_t> slots(p.batch, static_cast<std::int32_t>(longest));
    if (packed) {
      slots = lengths(p.batch, longest, pattern);
      cu.assign(1, 0);
      for (const std::int32_t s : slots) cu.push_back(cu.back() + s);
      total = cu.back();
    }
    if (!used) return;
    n = packed ? slots : lengths(p.batch, longest, pattern);
    if (packed)
      for (auto& x : n) x = static_cast<std::int32_t>(pick(0, x));
  };
  side(v.cu_seqlens_q, v.seqused_q, p.seq_q, v.total_q, c.lengths.cu_q, c.lengths.used_q);
  side(v.cu_seqlens_kv, v.seqused_kv, p.seq_kv, v.total_kv, c.lengths.cu_kv, c.lengths.used_kv);
}

void CaseMaker::finish(Case& c, const std::string& words) {
  const Problem& p = c.problem;
  c.kind = static_cast<InputKind>(pick(0, 3));
  if (c.kind == InputKind::kHugeLogits && (p.alibi != Alibi::kNone || p.scale))
    c.kind = InputKind::kNormal;
  c.layout = static_cast<Layout>(pick(0, 3));
  c.name = format_text("{} B{} H{}/{} S{}x{} D{}/{}{} {} {}", tilewise::name_of(p.dtype), p.batch,
                       p.heads_q, p.heads_kv, p.seq_q, p.seq_kv, p.head_dim, p.head_dim_v, words,
                       name_of(c.kind), name_of(c.layout));
}

Case CaseMaker::make(const Shape& s, DType dtype, std::vector<std::string> features) {
  Case c;
  Problem& p = c.problem;
  p.batch = s.batch, p.heads_q = s.heads_q, p.heads_kv = s.heads_kv;
  p.seq_q = s.seq_q, p.seq_kv = s.seq_kv, p.head_dim = s.head_dim, p.head_dim_v = s.head_dim_v;
  p.dtype = dtype;
  std::string words;
  for (const std::string& known : feature_names())
    if (std::find(features.begin(), features.end(), known) != features.end()) {
      apply(known, c);
      words += " " + known;
    }
  finish(c, words);
  return c;
}

Case CaseMaker::make_varlen(const Shape& s, DType dtype, std::vector<std::string> features,
                            LengthPattern pattern) {
  constexpr const char* kWords[kLengthPatterns] = {"random",    "zero-first", "zero-middle",
                                                   "zero-last", "all-zero",   "one-long"};
  Case c = make(s, dtype, std::move(features));
  apply_varlen(c, pattern);
  const Varlen& v = c.problem.varlen;
  c.name += format_text(" varlen({}:{}{}{}{})", kWords[static_cast<int>(pattern)],
                        v.cu_seqlens_q ? " cu-q" : "", v.cu_seqlens_kv ? " cu-kv" : "",
                        v.seqused_q ? " used-q" : "", v.seqused_kv ? " used-kv" : "");
  return c;
}

}  // namespace tilewise::reference
