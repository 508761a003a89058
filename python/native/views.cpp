#include "views.h"

#include <string>

#include "exchange.h"

namespace tilewise::python {
namespace {

namespace nb = nanobind;

// A borrowed item. The sizes are the Python side's, checked by count_of.
PyObject* item(nb::handle tuple, Py_ssize_t i) {
  return PyTuple_GetItem(tuple.ptr(), i);
}

std::int64_t integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

std::uint64_t bits(PyObject* object) {
  const unsigned long long value = PyLong_AsUnsignedLongLongMask(object);
  if (value == ~0ull && PyErr_Occurred()) throw nb::python_error();
  return value;
}

}  // namespace

void* address(nb::handle number) {
  void* const value = PyLong_AsVoidPtr(number.ptr());
  if (!value && PyErr_Occurred()) throw nb::python_error();
  return value;
}

void expect_count(nb::handle tuple, int count) {
  if (!PyTuple_Check(tuple.ptr()) || PyTuple_Size(tuple.ptr()) != count)
    throw nb::type_error("a native call takes tuples as tilewise's Python side makes them");
}

Tensor tensor_of(nb::handle view) {
  Tensor t;
  if (view.is_none()) return t;
  if (is_exchanged(view)) {
    if (read_exchanged(view, t)) return t;
    throw nb::type_error(
        "a tensor's device or dtype is not known; accepted: cpu and cuda, float32, "
        "float16, bfloat16, int32");
  }
  expect_count(view, 6);
  t.data = address(item(view, 0));
  t.dtype = static_cast<DType>(integer(item(view, 1)));
  t.device.kind = static_cast<Device::Kind>(integer(item(view, 2)));
  t.device.index = static_cast<int>(integer(item(view, 3)));
  const nb::handle shape = item(view, 4), strides = item(view, 5);
  const Py_ssize_t rank = PyTuple_Size(shape.ptr());
  if (rank < 0) throw nb::python_error();
  if (rank > kMaxRank)
    throw nb::value_error(
        ("a tensor has rank " + std::to_string(rank) + "; accepted: at most 4").c_str());
  expect_count(strides, static_cast<int>(rank));
  t.rank = static_cast<int>(rank);
  for (int i = 0; i < t.rank; ++i) {
    t.shape[i] = integer(item(shape, i));
    t.strides[i] = integer(item(strides, i));
  }
  return t;
}

Inputs inputs_of(nb::handle views, nb::handle dropout) {
  expect_count(views, kOperands);
  expect_count(dropout, 2);
  Inputs in;
  Tensor* const tensors[] = {&in.q,
                             &in.k,
                             &in.v,
                             &in.alibi_slopes,
                             &in.bias,
                             &in.sink,
                             &in.cu_seqlens_q,
                             &in.cu_seqlens_kv,
                             &in.seqused_q,
                             &in.seqused_kv};
  for (int i = 0; i < kOperands; ++i) *tensors[i] = tensor_of(item(views, i));
  in.dropout_seed = bits(item(dropout, 0));
  in.dropout_offset = bits(item(dropout, 1));
  return in;
}

Outputs outputs_of(nb::handle views) {
  expect_count(views, 2);
  return {tensor_of(item(views, 0)), tensor_of(item(views, 1))};
}

Gradients gradients_of(nb::handle views) {
  expect_count(views, 9);
  Gradients g;
  Tensor* const tensors[] = {&g.o,  &g.lse, &g.d_o,   &g.d_lse, &g.dq,
                             &g.dk, &g.dv,  &g.dbias, &g.dsink};
  for (int i = 0; i < 9; ++i) *tensors[i] = tensor_of(item(views, i));
  return g;
}

void raise_unless_ok(const Status& status) {
  if (status.ok()) return;
  PyObject* type = PyExc_RuntimeError;
  if (status.code() == StatusCode::kInvalidArgument) type = PyExc_ValueError;
  if (status.code() == StatusCode::kUnsupported) type = PyExc_NotImplementedError;
  if (status.code() == StatusCode::kOutOfMemory) type = PyExc_MemoryError;
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

}  // namespace tilewise::python
