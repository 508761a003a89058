// Compiled for the machine at hand with -Ofast, so that the softmax' loops become vector code
// with libmvec's expf: the baseline shall not lose by its softmax.
#include "blas_attention.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace tilewise::bench {
namespace {

// Stands for -inf, which is not for code that is compiled for finite numbers.
constexpr float kHidden = -3e38f;
// Near underflow libmvec's expf leaves its vector path for a scalar one, which would make the
// masked half of the matrix the dearest. So exponents stop at -80, and what comes out there is 0.
constexpr float kLowestExponent = -80.0f;
constexpr float kLowestExp = 1.9e-35f;  // a little above exp(-80)

// `from` and `to` may be the same row.
void softmax_row(const float* from, float* to, std::int64_t size) {
  float top = kHidden;
#pragma omp simd reduction(max : top)
  for (std::int64_t j = 0; j < size; ++j) top = std::max(top, from[j]);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < size; ++j) {
    const float e = std::exp(std::max(from[j] - top, kLowestExponent));
    to[j] = e > kLowestExp ? e : 0.0f;
    sum += to[j];
  }
  const float inverse = size > 0 ? 1 / sum : 0;
#pragma omp simd
  for (std::int64_t j = 0; j < size; ++j) to[j] *= inverse;
}

float scale_of(const Problem& problem) {
  return problem.scale.value_or(1 / std::sqrt(static_cast<float>(problem.head_dim)));
}

}  // namespace

std::string blas_description() {
  return std::string(openblas_get_config()) + ", kernel " + openblas_get_corename();
}

BlasAttention::BlasAttention(const Problem& problem, StandardKind kind, int threads)
    : problem_(problem), kind_(kind), threads_(threads), scores_(problem.seq_q * problem.seq_kv) {
  if (kind == StandardKind::kEager) probabilities_.resize(scores_.size());
}

template <class Visit>
void BlasAttention::for_rows(Visit&& visit) {
  const std::int64_t rows = problem_.seq_q, cols = problem_.seq_kv;
  const std::int64_t off = problem_.mask.align == Align::kBottomRight ? cols - rows : 0;
  const bool causal = problem_.mask.causal;
#pragma omp parallel for schedule(static, 16) num_threads(threads_)
  for (std::int64_t i = 0; i < rows; ++i)
    visit(i, causal ? std::clamp<std::int64_t>(i + off + 1, 0, cols) : cols);
}

void BlasAttention::mask_and_softmax() {
  const std::int64_t cols = problem_.seq_kv;
  float* const s = scores_.data();
  const auto hide = [=](std::int64_t i, std::int64_t visible) {
    std::fill(s + i * cols + visible, s + (i + 1) * cols, kHidden);
  };
  switch (kind_) {
    case StandardKind::kEager: {
      float* const p = probabilities_.data();
      const float scale = scale_of(problem_);
      for_rows([=](std::int64_t i, std::int64_t) {
#pragma omp simd
        for (std::int64_t j = 0; j < cols; ++j) s[i * cols + j] *= scale;
      });
      for_rows(hide);
      for_rows(
          [=](std::int64_t i, std::int64_t) { softmax_row(s + i * cols, p + i * cols, cols); });
      return;
    }
    case StandardKind::kPlain:
      return for_rows([=](std::int64_t i, std::int64_t visible) {
        hide(i, visible);
        softmax_row(s + i * cols, s + i * cols, cols);
      });
    case StandardKind::kTuned:
      return for_rows([=](std::int64_t i, std::int64_t visible) {
        softmax_row(s + i * cols, s + i * cols, visible);
        std::fill(s + i * cols + visible, s + (i + 1) * cols, 0.0f);
      });
  }
}

void BlasAttention::forward(const Inputs& in, const Outputs& out) {
  openblas_set_num_threads(threads_);
  const int sq = static_cast<int>(problem_.seq_q), sk = static_cast<int>(problem_.seq_kv);
  const int d = static_cast<int>(problem_.head_dim), dv = static_cast<int>(problem_.head_dim_v);
  const int heads = static_cast<int>(problem_.heads_q);
  const bool eager = kind_ == StandardKind::kEager;
  const float scale = eager ? 1 : scale_of(problem_);
  const float* p = eager ? probabilities_.data() : scores_.data();
  for (int h = 0; h < heads; ++h) {
    const float* q = static_cast<const float*>(in.q.data) + h * d;   // (Sq, D), row stride H D
    const float* k = static_cast<const float*>(in.k.data) + h * d;   // (Sk, D), row stride H D
    const float* v = static_cast<const float*>(in.v.data) + h * dv;  // (Sk, Dv), row stride H Dv
    float* o = static_cast<float*>(out.o.data) + h * dv;             // (Sq, Dv), row stride H Dv
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, sq, sk, d, scale, q, heads * d, k,
                heads * d, 0, scores_.data(), sk);
    mask_and_softmax();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, sq, dv, sk, 1, p, sk, v, heads * dv, 0,
                o, heads * dv);
  }
}

double seconds(Clock clock) {
  timespec now{};
  clock_gettime(clock == Clock::kCpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double measure_sgemm_flops(int threads, Clock clock) {
  constexpr int kSize = 2048;
  openblas_set_num_threads(threads);
  std::vector<float> a(kSize * kSize, 0.5f), b(a), c(a);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double start = seconds(clock);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, kSize, kSize, kSize, 1, a.data(), kSize,
                b.data(), kSize, 0, c.data(), kSize);
    best = std::max(best, 2.0 * kSize * kSize * kSize / (seconds(clock) - start));
  }
  return best;
}

}  // namespace tilewise::bench
