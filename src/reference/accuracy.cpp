// See accuracy.h.
#include "reference/accuracy.h"

#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "reference/element.h"

namespace tilewise::reference {
namespace {

double relative_bound(const Measured& m) {
  double r = 2e-6;
  if (m.dtype == DType::kF16) r = 1e-3;
  if (m.dtype == DType::kBF16) r = 8e-3;
  return m.quantity == Quantity::kOutput ? r : 3 * r;
}

double sum_of_squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x)
    if (std::isfinite(e)) sum += e * e;
  return sum;
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
    return format_text("{}: {} elements, the reference has {}", name, out.size(), ref.size());
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = out.size(); i-- > 0;)
    if (!same_kind(out[i], ref[i])) ++wrong, first = i;
  if (wrong == 0) return {};
  return format_text(
      "{}: {} of {} elements differ in being finite, inf or NaN; the first is {}: "
      "{} should be {}",
      name, wrong, out.size(), first, out[first], ref[first]);
}

// Where low overflowed, the nearest number of the dtype stands in.
double low_error(double low, double ref, DType dtype) {
  if (!std::isfinite(low)) low = round_to(dtype, static_cast<float>(ref));
  return std::abs(low - ref);
}

}  // namespace

void Errors::merge(const Errors& other) {
  if (misplaced.empty()) misplaced = other.misplaced;
  if (other.max > max) worst = other.worst;
  max = std::max(max, other.max);
  low_max = std::max(low_max, other.low_max);
  magnitude_max = std::max(magnitude_max, other.magnitude_max);
  squares += other.squares;
  ref_squares += other.ref_squares;
  magnitude_squares += other.magnitude_squares;
  unseen_squares += other.unseen_squares;
  count += other.count;
}

Errors measure(const Measured& m) {
  Errors e;
  e.name = m.name;
  e.relative_bound = relative_bound(m);
  const std::vector<double> out = values_of(m.out);
  const std::vector<double> ref = clamped(m.out.dtype, m.ref);
  e.misplaced = misplaced(m.name, out, ref);
  if (!e.misplaced.empty()) return e;

  std::size_t worst = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(ref[i])) continue;
    const double error = std::abs(out[i] - ref[i]);
    if (error > e.max) e.max = error, worst = i;
    e.squares += error * error;
    for (const std::vector<double>* low : {&m.low, m.low_from_output})
      if (low) e.low_max = std::max(e.low_max, low_error((*low)[i], ref[i], m.dtype));
  }
  e.ref_squares = sum_of_squares(ref);
  if (m.magnitude) {
    e.magnitude_squares = sum_of_squares(*m.magnitude);
    for (const double x : *m.magnitude) e.magnitude_max = std::max(e.magnitude_max, x);
  }
  e.count = static_cast<std::int64_t>(out.size());
  const double unseen = std::ldexp(1.0, m.out.dtype == DType::kF16 ? -25 : -120);
  e.unseen_squares = unseen * unseen * static_cast<double>(e.count);
  if (e.max > 0)
    e.worst = format_text("element {} is {:.9g}, should be {:.9g}", worst, out[worst], ref[worst]);
  return e;
}

Verdict judge(const Errors& e) {
  Verdict v;
  v.text = e.misplaced;
  if (!v.text.empty()) return v;
  v.max_error = e.max;
  v.max_allowed = std::max(2 * e.low_max + 1e-5, e.relative_bound / 32 * e.magnitude_max);
  v.norm_allowed = e.relative_bound;
  const double size = std::sqrt(std::max(e.ref_squares, e.magnitude_squares / (32 * 32)));
  const double excess = std::sqrt(e.squares) - std::sqrt(e.unseen_squares);
  v.norm_error = excess <= 0 ? 0 : size > 0 ? excess / size : excess;

  const bool max_ok = v.max_error <= v.max_allowed, norm_ok = v.norm_error <= v.norm_allowed;
  v.pass = max_ok && norm_ok;
  v.text =
      format_text("{}: max error {:.3g} (allowed {:.3g}), relative norm {:.3g} (allowed {:.3g})",
                  e.name, v.max_error, v.max_allowed, v.norm_error, v.norm_allowed);
  if (!max_ok) v.text += "; the maximum is too large: " + e.worst;
  if (!norm_ok) v.text += "; the norm is too large";
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
  v.text = format_text("LSE: max error {:.3g} (allowed {:.3g})", v.max_error, v.max_allowed);
  if (!v.pass)
    v.text += format_text("; element {} is {:.9g}, should be {:.9g}", at, out[at], ref[at]);
  return v;
}

}  // namespace tilewise::reference
