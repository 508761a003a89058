// Small row-major matrices for the O(S^2) code of this folder: plain loops, each sum in ascending
// order of the inner index, accumulated in T.
#pragma once

#include <cstdint>
#include <vector>

namespace tilewise::reference {

template <class T>
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<T> data;

  Matrix() = default;
  Matrix(std::int64_t r, std::int64_t c, T value = T{})
      : rows(r), cols(c), data(static_cast<std::size_t>(r * c), value) {}

  T* row(std::int64_t i) { return data.data() + i * cols; }
  const T* row(std::int64_t i) const { return data.data() + i * cols; }
  T& operator()(std::int64_t i, std::int64_t j) { return data[i * cols + j]; }
  const T& operator()(std::int64_t i, std::int64_t j) const { return data[i * cols + j]; }
};

template <class T>
Matrix<T> transposed(const Matrix<T>& a) {
  Matrix<T> t(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j) t(j, i) = a(i, j);
  return t;
}

// Whether a weight of exactly 0 in the left factor takes part. A key that is not visible has weight
// 0, and its value, which may be NaN, must not count.
enum class ZeroWeights { kCount, kSkip };

// a (m x k) times b (k x n).
template <class T>
Matrix<T> product(const Matrix<T>& a, const Matrix<T>& b, ZeroWeights zeros = ZeroWeights::kCount) {
  Matrix<T> c(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    T* out = c.row(i);
    for (std::int64_t l = 0; l < a.cols; ++l) {
      const T weight = a(i, l);
      if (zeros == ZeroWeights::kSkip && weight == T{0}) continue;
      const T* in = b.row(l);
      for (std::int64_t j = 0; j < b.cols; ++j) out[j] += weight * in[j];
    }
  }
  return c;
}

// Replaces every element x by f(x).
template <class T, class F>
Matrix<T> mapped(Matrix<T> a, F f) {
  for (T& x : a.data) x = f(x);
  return a;
}

}  // namespace tilewise::reference
