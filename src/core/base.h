// What every core header needs on the host and on the device: the function attribute and the fixed
// width types. Core headers include nothing else, so NVRTC compiles them without a search path.
#pragma once

#if defined(__CUDACC_RTC__)
#define TW_HD __host__ __device__ __forceinline__
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uint16_t = unsigned short;
using uint8_t = unsigned char;
#else
#include <cstdint>
#if defined(__CUDACC__)
#define TW_HD __host__ __device__ inline
#else
#define TW_HD inline
#endif
using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
#endif

namespace tilewise {

template <class T>
TW_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
TW_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
// Packed sequences' tiles of rows, numbered through: the first of sequence `batch`, which begins
// with row `begin` of all. No two sequences share a number; up to one a sequence has no row.
template <class T>
TW_HD constexpr T first_packed_tile(T begin, T batch, T tile_rows) {
  return begin / tile_rows + batch;
}
template <class T>
TW_HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
TW_HD constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

}  // namespace tilewise
