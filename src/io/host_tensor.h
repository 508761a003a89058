// HostTensor: a dense row-major tensor in 64-byte aligned host memory that it owns, and its view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>

#include "tilewise/status.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::io {

class HostTensor {
 public:
  HostTensor() = default;

  // Uninitialized. Errors: kInvalidArgument for a rank outside 1 to 4, a negative extent or a size
  // past 63 bits; kOutOfMemory.
  static Expected<HostTensor> create(DType dtype, std::span<const std::int64_t> shape);

  bool given() const { return view_.given(); }
  DType dtype() const { return view_.dtype; }
  std::span<const std::int64_t> shape() const {
    return {view_.shape.data(), static_cast<std::size_t>(view_.rank)};
  }
  std::int64_t elements() const { return view_.elements(); }
  std::int64_t bytes() const { return elements() * size_of(view_.dtype); }

  // Read from a file of float64, which no kernel takes.
  bool was_f64() const { return was_f64_; }
  void set_was_f64() { was_f64_ = true; }

  // Valid as long as this object lives; not given() when this one holds nothing.
  const Tensor& view() const { return view_; }
  void* data() const { return view_.data; }
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(view_.data), static_cast<std::size_t>(elements())};
  }

 private:
  struct Free {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<void, Free> memory_;
  Tensor view_;
  bool was_f64_ = false;
};

// One of f32, f16, bf16 as another, rounded to nearest even. kInvalidArgument for i32.
Expected<HostTensor> convert(const HostTensor& from, DType to);

// `count` numbers of a floating dtype, widened.
void widen(const void* from, DType dtype, std::int64_t count, float* to);

// The bytes of a dense tensor, or nothing if that, or a row-major stride of it, passes 63 bits.
std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape,
                                          std::int64_t element_bytes);

// "(2, 128, 8, 64)"; a shape of one extent is "(7,)".
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace tilewise::io
