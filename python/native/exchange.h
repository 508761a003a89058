// PyTorch's tensors read in nanoseconds, by the table of C functions that a framework hangs on its
// tensor class for this (DLPack 1.3, "exchange API"). Nothing is built against PyTorch, and where a
// version has no table the Python side hands over tuples (views.h).
#pragma once

#include <nanobind/nanobind.h>

#include "tilewise/tensor.hpp"

namespace tilewise::python {

// Takes the table of `tensor_class`, whose objects and those of `subclass` are read from now on.
// False: this version has none that can be read.
bool use_exchange(nanobind::handle tensor_class, nanobind::handle subclass);

// True for an object of exactly those two classes: others may hold no memory, or lie about it.
bool is_exchanged(nanobind::handle object);

// Whether `object` is on a CPU or a CUDA device and of a dtype that the library knows; if so, `out`
// views it.
bool read_exchanged(nanobind::handle object, Tensor& out);

// The framework's current stream of a CUDA device; null where there is no framework.
void* exchange_stream(int device_index);

}  // namespace tilewise::python
