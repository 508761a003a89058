// See accuracy.h.
#include "reference/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/element.h"

namespace tilewise::reference {
namespace {

double relative_bound(const Judged& j) {
  double r = 2e-6;
  if (j.dtype == DType::kF16) r = 1e-3;
  if (j.dtype == DType::kBF16) r = 8e-3;
  return j.quantity == Quantity::kOutput ? r : 3 * r;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x)
    if (std::isfinite(e)) sum += e * e;
  return std::sqrt(sum);
}

double largest(const std::vector<double>& x) {
  double most = 0;
  for (const double e : x) most = std::max(most, e);
  return most;
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> x;
  x.reserve(t.elements());
  for_each_offset(t, [&](std::int64_t offset) { x.push_back(load_element(t, offset)); });
  return x;
}

bool same_kind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::isfinite(a) ? std::isfinite(b) : a == b;
}

// ref, with infinities where the output's dtype cannot hold it.
std::vector<double> clamped(DType dtype, std::vector<double> ref) {
  for (double& x : ref)
    if (std::isinf(round_to(dtype, static_cast<float>(x)))) x = std::copysign(HUGE_VAL, x);
  return ref;
}

// Empty, or where out and ref differ in size or in what is infinite or NaN.
std::string misplaced(const char* name, const std::vector<double>& out,
                      const std::vector<double>& ref) {
  if (out.size() != ref.size())
    return fmt::format("{}: {} elements, the reference has {}", name, out.size(), ref.size());
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = out.size(); i-- > 0;)
    if (!same_kind(out[i], ref[i])) ++wrong, first = i;
  if (wrong == 0) return {};
  return fmt::format(
      "{}: {} of {} elements differ in being finite, inf or NaN; the first is {}: "
      "{} should be {}",
      name, wrong, out.size(), first, out[first], ref[first]);
}

// What low would hold had it not overflowed: the nearest number of the dtype.
double low_error(const Judged& j, const std::vector<double>& values, double ref, std::size_t i) {
  const double low = values[i];
  const double stand_in = round_to(j.dtype, static_cast<float>(ref));
  return std::abs((std::isfinite(low) ? low : stand_in) - ref);
}

}  // namespace

Verdict judge(const Judged& j) {
  Verdict v;
  const std::vector<double> out = values_of(j.out);
  const std::vector<double> ref = clamped(j.out.dtype, j.ref);
  v.text = misplaced(j.name, out, ref);
  if (!v.text.empty()) return v;

  double low_max = 0, squares = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(ref[i])) continue;
    const double error = std::abs(out[i] - ref[i]);
    if (error > v.max_error) v.max_error = error, worst = i;
    squares += error * error;
    low_max = std::max(low_max, low_error(j, j.low, ref[i], i));
    if (j.low_from_output) low_max = std::max(low_max, low_error(j, *j.low_from_output, ref[i], i));
  }
  v.norm_allowed = relative_bound(j);
  v.max_allowed = 2 * low_max + 1e-5;
  if (j.magnitude)
    v.max_allowed = std::max(v.max_allowed, v.norm_allowed / 32 * largest(*j.magnitude));
  const double size = std::max(norm(ref), j.magnitude ? norm(*j.magnitude) / 32 : 0.0);
  const double unseen = std::ldexp(1.0, j.out.dtype == DType::kF16 ? -25 : -120);
  const double excess = std::sqrt(squares) - unseen * std::sqrt(static_cast<double>(out.size()));
  v.norm_error = excess <= 0 ? 0 : size > 0 ? excess / size : excess;

  const bool max_ok = v.max_error <= v.max_allowed, norm_ok = v.norm_error <= v.norm_allowed;
  v.pass = max_ok && norm_ok;
  v.text =
      fmt::format("{}: max error {:.3g} (allowed {:.3g}), relative norm {:.3g} (allowed {:.3g})",
                  j.name, v.max_error, v.max_allowed, v.norm_error, v.norm_allowed);
  if (!max_ok)
    v.text +=
        fmt::format("; element {} is {:.9g}, should be {:.9g}", worst, out[worst], ref[worst]);
  if (!v.pass) v.text += max_ok ? "; the norm is too large" : "; the maximum is too large";
  return v;
}

Verdict judge_lse(const Tensor& lse, const std::vector<double>& ref,
                  const std::vector<double>& magnitude) {
  Verdict v;
  const std::vector<double> out = values_of(lse);
  v.text = misplaced("LSE", out, ref);
  if (!v.text.empty()) return v;
  v.pass = true;
  v.max_allowed = 1e-5;
  double worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(ref[i])) continue;
    const double size = std::max(std::abs(ref[i]), magnitude.empty() ? 0.0 : magnitude[i]);
    const double error = std::abs(out[i] - ref[i]), allowed = 1e-5 + 2e-6 * size;
    if (error / allowed > worst) worst = error / allowed, at = i;
    v.max_error = std::max(v.max_error, error);
    v.max_allowed = std::max(v.max_allowed, allowed);
  }
  v.pass = worst <= 1;
  v.text = fmt::format("LSE: max error {:.3g} (allowed {:.3g})", v.max_error, v.max_allowed);
  if (!v.pass)
    v.text += fmt::format("; element {} is {:.9g}, should be {:.9g}", at, out[at], ref[at]);
  return v;
}

}  // namespace tilewise::reference
