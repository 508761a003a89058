// See load.h.
#include "load.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "io/tensor_file.h"

namespace tilewise::tools {
namespace {

using io::HostTensor;
using io::Role;

Status refuse(const char* flag, const std::string& what) {
  return {StatusCode::kInvalidArgument, fmt::format("{} {}", flag, what)};
}

std::string shape_of(const Tensor& t) {
  return io::shape_text({t.shape.data(), static_cast<std::size_t>(t.rank)});
}

// Unless --dtype asks for it, rounding is not done in silence.
void note_rounding(const char* flag, const std::string& path, const HostTensor& tensor) {
  if (tensor.was_f64()) fmt::print(stderr, "tilewise: {} {} is f64, rounded to f32\n", flag, path);
}

// Fills a Loaded step by step; the first failure stays.
class Loader {
 public:
  explicit Loader(const ProblemFlags& flags) : flags_(flags), t_(flags.tensors), p_(out_.problem) {}

  Expected<Loaded> run() {
    const bool tensors = !t_.q.empty() || !t_.k.empty() || !t_.v.empty();
    const auto sizes = tensors ? &Loader::sizes_of_tensors : &Loader::sizes_of_flags;
    const auto terms = tensors ? &Loader::terms_of_tensors : &Loader::terms_of_flags;
    for (const auto step : {&Loader::lengths, sizes, &Loader::window, terms})
      if (Status s = (this->*step)(); !s.ok()) return s;
    const ScoreFlags& s = flags_.score;
    p_.mask.causal = s.causal;
    p_.mask.align = s.align;
    p_.scale = s.scale;
    p_.softcap = s.softcap;
    p_.dropout_p = s.dropout;
    out_.in.dropout_seed = s.seed;
    out_.in.dropout_offset = s.offset;
    return std::move(out_);
  }

 private:
  Status read(const char* flag, const std::string& path, Role role, Tensor* to) {
    if (path.empty()) return {};
    if (path == kSwitchedOn)
      return refuse(flag, "needs a tensor here: FILE.npy or FILE.safetensors:NAME");
    Expected<HostTensor> tensor = io::read_tensor(path, role);
    if (!tensor.ok()) return refuse(flag, tensor.status().message());
    if (!flags_.score.dtype) note_rounding(flag, path, *tensor);
    *to = tensor->view();
    out_.owned.push_back(std::move(*tensor));
    return {};
  }
  Status read_as(const char* flag, const std::string& path, DType as, Tensor* to) {
    if (Status s = read(flag, path, Role::kNumbers, to); !s.ok() || !to->given() || to->dtype == as)
      return s;
    Expected<HostTensor> rounded = io::convert(out_.owned.back(), as);
    if (!rounded.ok()) return refuse(flag, rounded.status().message());
    *to = rounded->view();
    out_.owned.back() = std::move(*rounded);
    return {};
  }

  // The index tensors, what they say about batch and lengths included.
  Status lengths() {
    struct Side {
      const char *cu_flag, *used_flag;
      const std::string &cu_path, &used_path;
      Tensor &cu, &used;
      bool &cu_given, &used_given;
      std::int64_t &total, &longest;
    };
    Inputs& in = out_.in;
    Varlen& v = p_.varlen;
    const Side sides[] = {
        {"--cu-seqlens-q", "--seqused-q", t_.cu_seqlens_q, t_.seqused_q, in.cu_seqlens_q,
         in.seqused_q, v.cu_seqlens_q, v.seqused_q, v.total_q, p_.seq_q},
        {"--cu-seqlens-k", "--seqused-k", t_.cu_seqlens_k, t_.seqused_k, in.cu_seqlens_kv,
         in.seqused_kv, v.cu_seqlens_kv, v.seqused_kv, v.total_kv, p_.seq_kv}};
    for (const Side& side : sides) {
      Status s = read(side.cu_flag, side.cu_path, Role::kIndices, &side.cu);
      if (s.ok()) s = read(side.used_flag, side.used_path, Role::kIndices, &side.used);
      if (!s.ok()) return s;
      side.used_given = side.used.given();
      if (!(side.cu_given = side.cu.given())) continue;
      if (side.cu.rank != 1 || side.cu.shape[0] < 1)
        return refuse(side.cu_flag,
                      fmt::format("has shape {}; accepted is (B + 1)", shape_of(side.cu)));
      const auto* cu = static_cast<const std::int32_t*>(side.cu.data);
      const std::int64_t batch = side.cu.shape[0] - 1;
      batch_ = batch;
      side.total = cu[batch];
      for (std::int64_t b = 0; b < batch; ++b)
        side.longest = std::max(side.longest, std::int64_t{cu[b + 1]} - cu[b]);
    }
    return {};
  }

  // (B, S, H, D), or with cu_seqlens (total, H, D): a place in `shape` counted from its end.
  static std::int64_t from_end(const Tensor& t, int i) { return t.shape[t.rank - i]; }

  Status check_rank(const char* flag, const Tensor& t, bool packed, const char* names) {
    if (t.rank == (packed ? 3 : 4)) return {};
    return refuse(flag, fmt::format("has shape {}; accepted is ({}{})", shape_of(t),
                                    packed ? "total, " : "B, S, ", names));
  }

  Status sizes_of_tensors() {
    Tensor &q = out_.in.q, &k = out_.in.k, &v = out_.in.v;
    const std::pair<const char*, const std::string*> needed[] = {
        {"--q", &t_.q}, {"--k", &t_.k}, {"--v", &t_.v}};
    for (const auto& [flag, path] : needed)
      if (path->empty()) return refuse(flag, "is missing; --q, --k and --v go together");
    const SizeFlags& z = flags_.sizes;
    for (const std::int64_t given :
         {z.batch, z.heads_q, z.heads_kv, z.seq_q, z.seq_kv, z.head_dim, z.head_dim_v})
      if (given >= 0)
        return refuse("--q", "and sizes exclude each other; the tensors have all sizes");
    if (Status s = read_qkv(); !s.ok()) return s;

    const bool packed_q = p_.varlen.cu_seqlens_q, packed_kv = p_.varlen.cu_seqlens_kv;
    Status s = check_rank("--q", q, packed_q, "Hq, D");
    if (s.ok()) s = check_rank("--k", k, packed_kv, "Hkv, D");
    if (s.ok()) s = check_rank("--v", v, packed_kv, "Hkv, Dv");
    if (!s.ok()) return s;
    if (!packed_q) p_.seq_q = q.shape[1];
    if (!packed_kv) p_.seq_kv = k.shape[1];
    if (packed_q) p_.varlen.total_q = q.shape[0];
    if (packed_kv) p_.varlen.total_kv = k.shape[0];
    p_.batch = packed_q || packed_kv ? batch_ : q.shape[0];
    p_.heads_q = from_end(q, 2);
    p_.heads_kv = from_end(k, 2);
    p_.head_dim = from_end(q, 1);
    p_.head_dim_v = from_end(v, 1);
    // What the output's size is made of has to agree before anything is allocated.
    if ((!packed_kv && k.shape[0] != p_.batch) || from_end(k, 1) != p_.head_dim)
      return refuse("--k", fmt::format("has shape {}; accepted are B = {} and D = {} as in --q {}",
                                       shape_of(k), p_.batch, p_.head_dim, shape_of(q)));
    if (!std::equal(v.shape.begin(), v.shape.begin() + v.rank - 1, k.shape.begin()))
      return refuse("--v",
                    fmt::format("has shape {}; accepted is that of --k {}, the last extent may "
                                "differ",
                                shape_of(v), shape_of(k)));
    return {};
  }

  Status read_qkv() {
    const ScoreFlags& score = flags_.score;
    Inputs& in = out_.in;
    const auto load = [&](const char* flag, const std::string& path, Tensor* to) {
      return score.dtype ? read_as(flag, path, *score.dtype, to)
                         : read(flag, path, Role::kNumbers, to);
    };
    Status s = load("--q", t_.q, &in.q);
    if (s.ok()) s = load("--k", t_.k, &in.k);
    if (s.ok()) s = load("--v", t_.v, &in.v);
    if (!s.ok()) return s;
    p_.dtype = in.q.dtype;
    const std::pair<const char*, DType> others[] = {{"--k", in.k.dtype}, {"--v", in.v.dtype}};
    for (const auto& [flag, dtype] : others)
      if (dtype != p_.dtype)
        return refuse(flag,
                      fmt::format("is {} but --q is {}; accepted is one dtype: give --dtype to "
                                  "round all to it",
                                  name_of(dtype), name_of(p_.dtype)));
    return {};
  }

  Status sizes_of_flags() {
    const SizeFlags& z = flags_.sizes;
    const auto pick = [](std::int64_t given, std::int64_t otherwise) {
      return given >= 0 ? given : otherwise;
    };
    if (z.seq_q < 0 && !p_.varlen.cu_seqlens_q)
      return {StatusCode::kInvalidArgument,
              "no problem is given; accepted are --q, --k and --v, or sizes from --seq-q on"};
    const bool packed = batch_ >= 0;
    if (packed && z.batch >= 0 && z.batch != batch_)
      return refuse("--batch",
                    fmt::format("is {}, but the cu_seqlens have {} sequences", z.batch, batch_));
    p_.batch = packed ? batch_ : pick(z.batch, 1);
    p_.heads_q = pick(z.heads_q, 1);
    p_.heads_kv = pick(z.heads_kv, p_.heads_q);
    p_.seq_q = pick(z.seq_q, p_.seq_q);
    p_.seq_kv = pick(z.seq_kv, p_.varlen.cu_seqlens_kv ? p_.seq_kv : p_.seq_q);
    p_.head_dim = pick(z.head_dim, 64);
    p_.head_dim_v = pick(z.head_dim_v, p_.head_dim);
    p_.dtype = flags_.score.dtype.value_or(DType::kF32);
    return {};
  }

  Status window() {
    const std::string& text = flags_.score.window;
    if (text.empty()) return {};
    const char* const end = text.data() + text.size();
    const auto left = std::from_chars(text.data(), end, p_.mask.left);
    const bool comma = left.ec == std::errc() && left.ptr != end && *left.ptr == ',';
    const auto right = std::from_chars(comma ? left.ptr + 1 : end, end, p_.mask.right);
    if (comma && right.ec == std::errc() && right.ptr == end && p_.mask.left >= -1 &&
        p_.mask.right >= -1)
      return {};
    return refuse(
        "--window",
        fmt::format("is \"{}\"; accepted is LEFT,RIGHT, each -1 (unbounded) or more", text));
  }

  Status terms_of_tensors() {
    Inputs& in = out_.in;
    Status s = read_as("--alibi", t_.alibi, DType::kF32, &in.alibi_slopes);
    if (s.ok()) s = read("--bias", t_.bias, Role::kNumbers, &in.bias);
    if (s.ok()) s = read_as("--sink", t_.sink, DType::kF32, &in.sink);
    if (!s.ok()) return s;
    p_.sink = in.sink.given();
    if (in.alibi_slopes.given())
      p_.alibi = in.alibi_slopes.rank == 2 ? Alibi::kPerBatchAndHead : Alibi::kPerHead;
    if (!in.bias.given()) return {};
    if (in.bias.rank != kMaxRank)
      return refuse("--bias", fmt::format("has shape {}; accepted is (B|1, Hq|1, Sq|1, Sk|1)",
                                          shape_of(in.bias)));
    set_bias(in.bias.shape, in.bias.dtype);
    return {};
  }

  Status terms_of_flags() {
    for (const auto& [flag, value] :
         {std::pair("--alibi", &t_.alibi), std::pair("--sink", &t_.sink)})
      if (!value->empty() && *value != kSwitchedOn)
        return refuse(flag, fmt::format("is \"{}\"; accepted with sizes is no value", *value));
    p_.sink = !t_.sink.empty();
    if (!t_.alibi.empty()) p_.alibi = Alibi::kPerHead;
    if (t_.bias.empty()) return {};
    std::array<std::int64_t, kMaxRank> shape = {p_.batch, p_.heads_q, p_.seq_q, p_.seq_kv};
    if (t_.bias != kSwitchedOn) {
      const char* at = t_.bias.data();
      const char* const end = at + t_.bias.size();
      for (std::int64_t& extent : shape) {
        const auto [next, error] = std::from_chars(at, end, extent);
        const bool last = &extent == &shape.back();
        if (error != std::errc() || (last ? next != end : next == end || *next != ','))
          return refuse("--bias",
                        fmt::format("is \"{}\"; accepted with sizes are no value and a shape "
                                    "such as 1,1,512,512",
                                    t_.bias));
        at = next + 1;
      }
    }
    set_bias(shape, DType::kF32);
    return {};
  }

  // Packed sequences have no extent of their own, so the bias tells how long they may get.
  void set_bias(const std::array<std::int64_t, kMaxRank>& shape, DType dtype) {
    if (p_.varlen.cu_seqlens_q) p_.seq_q = std::max(p_.seq_q, shape[2]);
    if (p_.varlen.cu_seqlens_kv) p_.seq_kv = std::max(p_.seq_kv, shape[3]);
    const auto broadcast = [](std::int64_t extent, std::int64_t full) {
      return extent == 1 && full != 1;
    };
    p_.bias = {true,
               broadcast(shape[0], p_.batch),
               broadcast(shape[1], p_.heads_q),
               broadcast(shape[2], p_.seq_q),
               broadcast(shape[3], p_.seq_kv),
               dtype};
  }

  const ProblemFlags& flags_;
  const TensorFlags& t_;
  Loaded out_;
  Problem& p_;
  std::int64_t batch_ = -1;  // as cu_seqlens have it
};

}  // namespace

Expected<Loaded> load_problem(const ProblemFlags& flags) {
  return Loader(flags).run();
}

Expected<io::HostTensor> load_numbers(const char* flag, const std::string& path, DType as) {
  if (path.empty()) return HostTensor();
  Expected<HostTensor> tensor = io::read_tensor(path, Role::kNumbers);
  if (!tensor.ok()) return refuse(flag, tensor.status().message());
  if (as == DType::kF32) note_rounding(flag, path, *tensor);
  if (tensor->dtype() == as) return tensor;
  return io::convert(*tensor, as);
}

}  // namespace tilewise::tools
