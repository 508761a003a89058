// The chart is two panels on one pair of log axes. Text is laid out by hand for 12 px sans-serif;
// colours are the Okabe-Ito ones, which colour-blind readers tell apart.
#include "sweep_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "io/atomic_file.h"
#include "plan/io_model.h"

namespace tilewise {
namespace {

constexpr std::int64_t kSmallestMaxN = 2;
constexpr std::int64_t kLargestMaxN = std::int64_t{1} << 30;
constexpr int kPointsPerOctave = 24;

constexpr double kWidth = 860, kHeight = 424;
constexpr double kPanelWidth = 360, kTop = 100, kBottom = 370;
constexpr double kPanelLeft[] = {74, 484};

struct Curve {
  const char* label;
  const char* stroke;
  double IoModel::*bytes;
};
constexpr Curve kCurves[] = {
    {"standard: scores written and read", "#D55E00", &IoModel::standard_bytes},
    {"fa1: keys outside", "#0072B2", &IoModel::fa1_bytes},
    {"fa2: queries outside", "#009E73", &IoModel::fa2_bytes},
    {"least: inputs and outputs once", "#666666\" stroke-dasharray=\"5 4", &IoModel::least_bytes},
};

struct Point {
  double n;
  IoModel io;
};

// The plane of both panels, in log10.
struct Axes {
  double n_low, n_high, bytes_low, bytes_high;

  double x(double n) const { return kPanelWidth * (std::log10(n) - n_low) / (n_high - n_low); }
  double y(double bytes) const {
    return kBottom - (kBottom - kTop) * (std::log10(bytes) - bytes_low) / (bytes_high - bytes_low);
  }
};

std::vector<Point> sweep(Problem problem, double fast_bytes, std::int64_t max_n, Pass pass) {
  problem.varlen = {};
  const double low = static_cast<double>(std::clamp<std::int64_t>(max_n / 16, 1, 128));
  const double octaves = std::log2(static_cast<double>(max_n) / low);
  const int steps = static_cast<int>(std::ceil(octaves * kPointsPerOctave));
  std::vector<Point> points;
  for (int i = 0; i <= steps; ++i) {
    problem.seq_q = problem.seq_kv = std::llround(low * std::exp2(octaves * i / steps));
    points.push_back({static_cast<double>(problem.seq_q), io_model(problem, fast_bytes, pass)});
  }
  return points;
}

// "100 kB", in powers of 1000.
std::string bytes_label(int decade) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  const int unit = std::clamp(decade / 3, 0, static_cast<int>(std::size(kUnits)) - 1);
  return fmt::format("{:g} {}", std::pow(10.0, decade - 3 * unit), kUnits[unit]);
}

// "64k" for 65536, in powers of 1024.
std::string length_label(int power) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  return fmt::format("{}{}", 1 << power % 10, kUnits[power / 10]);
}

std::string text(double x, double y, const char* attributes, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, words);
}

std::string line(double x1, double y1, double x2, double y2) {
  return fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x1, y1, x2, y2);
}

// Grid lines at powers, and labels where there is room for them.
std::string draw_grid(const Axes& axes, double left) {
  std::string lines, labels;
  const int decades = static_cast<int>(axes.bytes_high - axes.bytes_low + 0.5);
  for (int i = 0; i <= decades; ++i) {
    const int decade = static_cast<int>(axes.bytes_low) + i;
    const double y = axes.y(std::pow(10.0, decade));
    lines += line(left, y, left + kPanelWidth, y);
    if (left == kPanelLeft[0] && (decades <= 9 || decade % 3 == 0))
      labels += text(left - 8, y + 4, "text-anchor=\"end\"", bytes_label(decade));
  }
  const int first = static_cast<int>(std::ceil(axes.n_low / std::log10(2.0) - 1e-9));
  const int last = static_cast<int>(std::floor(axes.n_high / std::log10(2.0) + 1e-9));
  const int step = 1 + (last - first) / 8;
  for (int power = first; power <= last; power += step) {
    const double x = left + axes.x(std::exp2(power));
    lines += line(x, kTop, x, kBottom);
    labels += text(x, kBottom + 18, "text-anchor=\"middle\"", length_label(power));
  }
  return "<g stroke=\"#e4e4e4\">\n" + lines + "</g>\n" + labels;
}

std::string draw_panel(const Axes& axes, double left, const char* title,
                       const std::vector<Point>& points) {
  std::string svg = draw_grid(axes, left);
  svg += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#999\"/>\n", left,
      kTop, kPanelWidth, kBottom - kTop);
  for (const Curve& curve : kCurves) {
    std::string path;
    for (const Point& p : points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", left + axes.x(p.n),
                          axes.y(p.io.*curve.bytes));
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke-width=\"2\" stroke=\"{}\"/>\n", path,
                       curve.stroke);
  }
  svg +=
      text(left + kPanelWidth / 2, kTop - 10, "text-anchor=\"middle\" font-weight=\"bold\"", title);
  svg += text(left + kPanelWidth / 2, kBottom + 38, "text-anchor=\"middle\"",
              "sequence length N = Sq = Sk");
  return svg;
}

// One row above the panels.
std::string draw_legend() {
  static constexpr double kOffsets[] = {0, 240, 382, 540};
  std::string svg;
  for (std::size_t i = 0; i < std::size(kCurves); ++i) {
    const double x = kPanelLeft[0] + kOffsets[i], y = kTop - 36;
    svg += fmt::format("<path d=\"M{} {}h22\" stroke-width=\"2\" stroke=\"{}\"/>\n", x, y,
                       kCurves[i].stroke);
    svg += text(x + 28, y + 4, "", kCurves[i].label);
  }
  return svg;
}

std::string mask_words(const Mask& mask) {
  std::string words = mask.causal ? "causal" : "no mask";
  if (mask.left < 0 && mask.right < 0) return words;
  words = fmt::format("window {},{}", mask.left, mask.right);
  return mask.causal ? "causal, " + words : words;
}

std::string problem_words(const Problem& p) {
  const std::string heads = p.heads_q == p.heads_kv
                                ? fmt::format("{} head{}", p.heads_q, p.heads_q == 1 ? "" : "s")
                                : fmt::format("{} query / {} kv heads", p.heads_q, p.heads_kv);
  const std::string dims = p.head_dim == p.head_dim_v
                               ? fmt::format("D {}", p.head_dim)
                               : fmt::format("D {}, Dv {}", p.head_dim, p.head_dim_v);
  return fmt::format("batch {}, {}, {}, {}, {}", p.batch, heads, dims, name_of(p.dtype),
                     mask_words(p.mask));
}

Axes fit_axes(const std::vector<Point>& forward, const std::vector<Point>& backward) {
  Axes axes{std::log10(forward.front().n), std::log10(forward.back().n), 1e9, -1e9};
  for (const std::vector<Point>* points : {&forward, &backward})
    for (const Point& p : *points)
      for (const Curve& curve : kCurves) {
        const double at = std::log10(p.io.*curve.bytes);
        axes.bytes_low = std::min(axes.bytes_low, std::floor(at));
        axes.bytes_high = std::max(axes.bytes_high, std::ceil(at));
      }
  return axes;
}

std::string draw_chart(const Problem& problem, double fast_bytes, std::int64_t max_n) {
  const std::vector<Point> forward = sweep(problem, fast_bytes, max_n, Pass::kForward);
  const std::vector<Point> backward = sweep(problem, fast_bytes, max_n, Pass::kBackward);
  const Axes axes = fit_axes(forward, backward);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
             "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             kWidth, kHeight) +
         text(16, 26, "font-size=\"15\" font-weight=\"bold\"",
              "Slow-memory traffic that attention needs, by loop order") +
         text(16, 45, "fill=\"#555\"",
              fmt::format("{}; fast memory M = {:g} KiB", problem_words(problem),
                          std::round(fast_bytes / 1024 * 10) / 10)) +
         draw_panel(axes, kPanelLeft[0], "forward", forward) +
         draw_panel(axes, kPanelLeft[1], "backward", backward) + draw_legend() + "</svg>\n";
}

Status write_atomically(const std::string& path, const std::string& content) {
  Expected<io::AtomicFile> file = io::AtomicFile::create(path);
  if (!file.ok()) return file.status();
  Status status = file->write(content.data(), content.size());
  if (status.ok()) status = file->flush();
  return status.ok() ? file->commit() : status;
}

}  // namespace

Status write_sweep_chart(const Problem& problem, const Options& options, std::int64_t max_n,
                         const std::string& path) {
  if (max_n < kSmallestMaxN || max_n > kLargestMaxN)
    return {StatusCode::kInvalidArgument,
            fmt::format("sweep is {}; accepted is a sequence length from {} to {}", max_n,
                        kSmallestMaxN, kLargestMaxN)};
  // The plan checks the problem and knows the device's M.
  Problem probe = problem;
  probe.varlen = {};
  probe.seq_q = probe.seq_kv = max_n;
  const Expected<Plan> plan = make_plan(probe, {}, options);
  if (!plan.ok()) return plan.status();
  if (probe.batch == 0 || probe.heads_q == 0)
    return {StatusCode::kInvalidArgument,
            fmt::format("sweep of batch {} and heads_q {}: both must be at least 1", probe.batch,
                        probe.heads_q)};
  return write_atomically(path, draw_chart(probe, plan->forward.io.fast_memory_bytes, max_n));
}

}  // namespace tilewise
