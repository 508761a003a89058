// ptx/matrix.h, ptx/mma.h and tile/quad.h: who holds which number of an 8 x 8 matrix.
#include "core/half.h"
#include "primitives/primitive.h"

namespace tilewise::test {
namespace {

// Number (row, column) of matrix m, as 16 bits that tell its place.
std::uint32_t number(std::uint32_t m, std::uint32_t row, std::uint32_t column) {
  return 0x1000 * m + 0x100 * row + column;
}
// The words of the four matrices, row by row; `transposed` swaps rows and columns.
Words matrices(bool transposed) {
  Words out;
  for (std::uint32_t m = 0; m < 4; ++m)
    for (std::uint32_t r = 0; r < 8; ++r)
      for (std::uint32_t c = 0; c < 8; c += 2)
        out.push_back(transposed ? number(m, c, r) | number(m, c + 1, r) << 16
                                 : number(m, r, c) | number(m, r, c + 1) << 16);
  return out;
}

// Lane l of a warp holds, of each matrix, row l / 4 at columns 2 (l % 4) and the next.
Words fragments() {
  Words out;
  for (std::uint32_t lane = 0; lane < 32; ++lane)
    for (std::uint32_t m = 0; m < 4; ++m)
      out.push_back(number(m, lane / 4, lane % 4 * 2) | number(m, lane / 4, lane % 4 * 2 + 1)
                                                            << 16);
  return out;
}

Primitive moves(const char* body) {
  Primitive p;
  p.headers = {"cuda/device/ptx/matrix.h", "cuda/device/ptx/sync.h"};
  p.smem_bytes = 512;
  p.body = std::string(R"cuda(
  uint32_t* const s_words = reinterpret_cast<uint32_t*>(s_memory);
  const uint32_t s_row = ptx::shared_address(s_memory) + 16 * thread;
  uint32_t r[4];)cuda") +
           body;
  return p;
}

constexpr const char* kStore = R"cuda(
  for (int i = 0; i < 4; ++i) r[i] = a.in[4 * thread + i];
  ptx::STORE(s_row, r);
  ptx::warp_sync();
  for (int i = 0; i < 4; ++i) a.out[4 * thread + i] = s_words[4 * thread + i];)cuda";

Primitive stores(const std::string& name, bool transposed) {
  std::string body = kStore;
  body.replace(body.find("STORE"), 5, name);
  Primitive p = moves(body.c_str());
  p.in = fragments();
  p.out = matrices(transposed);
  return p;
}

const Registered kStmatrix("stmatrix", [] { return stores("stmatrix_x4", false); });
const Registered kTransposed("stmatrix, transposed",
                             [] { return stores("stmatrix_x4_transposed", true); });
const Registered kLdmatrix("ldmatrix", [] {
  Primitive p = moves(R"cuda(
  for (int i = 0; i < 4; ++i) s_words[4 * thread + i] = a.in[4 * thread + i];
  ptx::warp_sync();
  ptx::ldmatrix_x4(r, s_row);
  for (int i = 0; i < 4; ++i) a.out[4 * thread + i] = r[i];)cuda");
  p.in = matrices(false);
  p.out = fragments();
  return p;
});

const Registered kQuad("transpose_quad", [] {
  Primitive p;
  p.headers = {"cuda/device/tile/quad.h"};
  p.body = R"cuda(
  uint32_t pair[4];
  for (int j = 0; j < 4; ++j) pair[j] = thread / 4 * 100 + 8 * j + 2 * (thread % 4);
  tile::transpose_quad(pair, thread % 4);
  for (int j = 0; j < 4; ++j) a.out[4 * thread + j] = pair[j];)cuda";
  for (std::uint32_t t = 0; t < p.threads; ++t)
    for (std::uint32_t j = 0; j < 4; ++j) p.out.push_back(t / 4 * 100 + 8 * (t % 4) + 2 * j);
  return p;
});

}  // namespace
}  // namespace tilewise::test
