// What one head of one sequence is made of: where its rows lie, which keys each query sees, what is
// added to its scores and which probabilities dropout keeps. Written from the words of
// docs/semantics.md, on purpose without core/mask.h.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "reference/element.h"
#include "reference/matrix.h"
#include "tilewise/attention.hpp"

namespace tilewise::reference {

// The used rows of one sequence on one side.
struct Rows {
  std::int64_t batch = 0;
  std::int64_t first = 0;  // in the packed tensor; 0 in a dense one
  std::int64_t flat = 0;   // first row counted through the whole tensor
  std::int64_t used = 0;
};

// One query head of one sequence.
struct Head {
  const Problem& problem;
  const Inputs& in;
  std::int64_t batch, head;
  Rows q, kv;

  Head(const Problem& p, const Inputs& inputs, std::int64_t b, std::int64_t h);

  std::int64_t kv_head() const { return head / (problem.heads_q / problem.heads_kv); }
  double scale() const;
  bool visible(std::int64_t i, std::int64_t j) const;
  double alibi(std::int64_t i, std::int64_t j) const;
  double bias(std::int64_t i, std::int64_t j) const;
  double sink() const;
  // What the probability is multiplied with: 0 or 1 / (1 - p).
  double dropout(std::int64_t i, std::int64_t j) const;

  // Where row i of this head lies in a dense LSE, and (i, j) in a dense dbias.
  std::int64_t lse_index(std::int64_t i) const;
  std::int64_t bias_index(std::int64_t i, std::int64_t j) const;

 private:
  std::int64_t off_ = 0;
  DropoutRule rule_{};
};

// Rows of the results: all of Q's, all of K's.
std::int64_t total_rows_q(const Problem& p);
std::int64_t total_rows_kv(const Problem& p);
// Elements of a dense dbias; 0 without a bias.
std::int64_t bias_elements(const Problem& p);

// The rows of one head of a (B, S, H, D) or (total, H, D) tensor.
template <class T>
Matrix<T> gather(const Tensor& t, const Rows& rows, std::int64_t head) {
  const int s = t.rank - 3;  // the dimension that rows run along
  const std::int64_t base = (t.rank == 4 ? rows.batch * t.strides[0] : 0) + head * t.strides[s + 1];
  Matrix<T> m(rows.used, t.shape[s + 2]);
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t d = 0; d < m.cols; ++d)
      m(i, d) = static_cast<T>(
          load_element(t, base + (rows.first + i) * t.strides[s] + d * t.strides[s + 2]));
  return m;
}

// Adds a head's rows to a dense (rows, heads, D) result.
template <class T>
void scatter_add(const Matrix<T>& m, const Rows& rows, std::int64_t head, std::int64_t heads,
                 std::vector<double>& result) {
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t d = 0; d < m.cols; ++d)
      result[((rows.flat + i) * heads + head) * m.cols + d] += m(i, d);
}

// Row i of an incoming gradient of LSE; 0 when none arrives.
double lse_gradient(const Head& head, const Tensor& d_lse, std::int64_t i);

}  // namespace tilewise::reference
