// See fill.h, and InputKind in case.h for what the numbers are.
#include "reference/fill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "reference/element.h"

namespace tilewise::reference {
namespace {

// Where the rows of each sequence lie on one side.
struct Side {
  const std::vector<std::int32_t>&cu, &used;
  std::int64_t slot;

  std::int64_t first(std::size_t b) const { return cu.empty() ? 0 : cu[b]; }
  std::int64_t rows(std::size_t b) const {
    if (!used.empty()) return used[b];
    return cu.empty() ? slot : cu[b + 1] - cu[b];
  }
  std::int64_t longest(std::size_t batch) const {
    std::int64_t most = 0;
    for (std::size_t b = 0; b < batch; ++b) most = std::max(most, rows(b));
    return most;
  }
};

// What a tensor's rows are for, which decides what they hold.
enum class Role { kQuery, kKey, kValue, kGradient };

class Filler {
 public:
  Filler(const Case& c, std::uint64_t seed)
      : c_(c),
        q_{c.lengths.cu_q, c.lengths.used_q, c.problem.seq_q},
        kv_{c.lengths.cu_kv, c.lengths.used_kv, c.problem.seq_kv},
        random_(seed) {}

  void all(Inputs& in, const Gradients& grads) {
    rows(in.q, q_, Role::kQuery);
    rows(in.k, kv_, Role::kKey);
    rows(in.v, kv_, Role::kValue);
    rows(grads.d_o, q_, Role::kGradient);
    if (grads.d_lse.given()) lse_gradient(grads.d_lse);
    if (in.bias.given()) bias(in.bias);
    if (in.alibi_slopes.given()) slopes(in.alibi_slopes);
    if (in.sink.given())
      for_each_offset(in.sink,
                      [&](std::int64_t at) { store_element(in.sink, at, normal_(random_)); });
    indices(in.cu_seqlens_q, c_.lengths.cu_q);
    indices(in.cu_seqlens_kv, c_.lengths.cu_kv);
    indices(in.seqused_q, c_.lengths.used_q);
    indices(in.seqused_kv, c_.lengths.used_kv);
    in.dropout_seed = random_();
    in.dropout_offset = random_();
  }

 private:
  std::size_t batch() const { return static_cast<std::size_t>(c_.problem.batch); }

  void rows(const Tensor& t, const Side& side, Role role) {
    if (!t.given() || t.elements() == 0) return;
    const int s = t.rank - 3;
    for (std::size_t b = 0; b < batch(); ++b)
      for (std::int64_t i = 0; i < side.rows(b); ++i)
        for (std::int64_t h = 0; h < t.shape[s + 1]; ++h) {
          const std::int64_t base = (s ? static_cast<std::int64_t>(b) * t.strides[0] : 0) +
                                    (side.first(b) + i) * t.strides[s] + h * t.strides[s + 1];
          row(t, base, t.shape[s + 2], role);
        }
  }

  void row(const Tensor& t, std::int64_t base, std::int64_t d, Role role) {
    if (c_.kind == InputKind::kHugeLogits && role == Role::kQuery) return huge_query(t, base, d);
    if (c_.kind == InputKind::kHugeLogits && role == Role::kKey) return huge_key(t, base, d);
    const double constant = constant_of(role);
    for (std::int64_t i = 0; i < d; ++i) {
      double x = normal_(random_);
      if (c_.kind == InputKind::kOutliers && random_() % 1000 == 0) x += 10 * normal_(random_);
      if (c_.kind == InputKind::kConstantRows && role != Role::kGradient) x = constant;
      store_element(t, base + i, x);
    }
  }

  double constant_of(Role role) {
    const double x = normal_(random_);
    if (c_.problem.dtype == DType::kF32)
      return std::max(1.0, std::abs(std::round(8 * x))) / 8 * sign();
    const double d = static_cast<double>(c_.problem.head_dim);
    return role == Role::kValue ? x : x / std::sqrt(std::sqrt(d));
  }

  // With u = 32, D the head dim and scale 1 / sqrt(D), q . k * scale = +-1e4 + 1024 m y / sqrt(D):
  //   key    (4 u, y u, y u, ...)              y one of +-1 ... +-4
  //   query  (+-2.5 sqrt(D) u, x_1 u, ...)     m = x_1 + x_2 + ..., odd and therefore never 0
  // Every number has at most 8 significant bits, so bf16 holds it.
  static constexpr double kUnit = 32;

  void huge_key(const Tensor& t, std::int64_t base, std::int64_t d) {
    const double y = sign() * static_cast<double>(1 + random_() % 4);
    for (std::int64_t i = 0; i < d; ++i) store_element(t, base + i, (i ? y : 4) * kUnit);
  }

  void huge_query(const Tensor& t, std::int64_t base, std::int64_t d) {
    store_element(t, base, sign() * std::round(2.5 * std::sqrt(static_cast<double>(d))) * kUnit);
    for (std::int64_t i = 1; i < d; ++i) {
      const double odd = random_() % 2 ? 1 : 3, even = 2;
      // As many odd numbers as make the sum odd: all d - 1 of them, or all but the first.
      store_element(t, base + i, sign() * (i == 1 && d % 2 ? even : odd) * kUnit);
    }
  }

  double sign() { return random_() % 2 ? 1 : -1; }

  void lse_gradient(const Tensor& t) {
    const int s = t.rank - 1;
    for (std::size_t b = 0; b < batch(); ++b)
      for (std::int64_t h = 0; h < c_.problem.heads_q; ++h)
        for (std::int64_t i = 0; i < q_.rows(b); ++i)
          store_element(t,
                        (s == 2 ? static_cast<std::int64_t>(b) * t.strides[0] : 0) +
                            h * t.strides[s - 1] + (q_.first(b) + i) * t.strides[s],
                        normal_(random_));
  }

  void bias(const Tensor& t) {
    const bool huge = c_.kind == InputKind::kHugeLogits;
    for (std::int64_t b = 0; b < t.shape[0]; ++b) {
      // A batch that is broadcast serves every sequence.
      const bool shared = c_.problem.bias.broadcast_batch;
      const auto rows = [&](const Side& s) { return shared ? s.longest(batch()) : s.rows(b); };
      const std::int64_t sq = c_.problem.bias.broadcast_q ? 1 : rows(q_);
      const std::int64_t sk = c_.problem.bias.broadcast_kv ? 1 : rows(kv_);
      for (std::int64_t h = 0; h < t.shape[1]; ++h)
        for (std::int64_t i = 0; i < sq; ++i) {
          const double constant = 64.0 * (1 + static_cast<double>(random_() % 16));
          for (std::int64_t j = 0; j < sk; ++j) {
            double x = huge ? constant : normal_(random_);
            if (c_.hiding_bias && random_() % 5 == 0) x = -std::numeric_limits<double>::infinity();
            store_element(
                t, b * t.strides[0] + h * t.strides[1] + i * t.strides[2] + j * t.strides[3], x);
          }
        }
    }
  }

  // The slopes of the ALiBi paper, a geometric series, each a little off.
  void slopes(const Tensor& t) {
    double n = 0;
    for_each_offset(t, [&](std::int64_t at) {
      const double h = std::fmod(n++, static_cast<double>(c_.problem.heads_q)) + 1;
      const double jitter = 1 + 0.1 * normal_(random_);
      store_element(t, at, std::exp2(-8 * h / static_cast<double>(c_.problem.heads_q)) * jitter);
    });
  }

  static void indices(const Tensor& t, const std::vector<std::int32_t>& values) {
    for (std::size_t i = 0; t.given() && i < values.size(); ++i)
      store_element(t, static_cast<std::int64_t>(i) * t.strides[0], values[i]);
  }

  const Case& c_;
  Side q_, kv_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
};

}  // namespace

void fill(const Case& c, std::uint64_t seed, Inputs& in, const Gradients& grads) {
  Filler(c, seed).all(in, grads);
}

}  // namespace tilewise::reference
