#include "exchange.h"

#include <algorithm>
#include <cstdint>

namespace tilewise::python {
namespace {

namespace nb = nanobind;

// The layouts are DLPack's, which keeps them within a major version.
enum : std::int32_t { kCpuMemory = 1, kCudaMemory = 2 };
enum : std::uint8_t { kInt = 0, kFloat = 2, kBFloat = 4 };

struct ForeignTensor {
  void* data;
  std::int32_t device_type, device_index;
  std::int32_t rank;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t *shape, *strides;  // in elements
  std::uint64_t byte_offset;
};

struct Exchange {
  static constexpr std::uint32_t kMajor = 1;
  std::uint32_t major, minor;
  const Exchange* older;
  void (*allocate)(), (*from_object)(), (*to_object)();  // not called
  int (*view)(void* object, ForeignTensor* out);         // may be null; -1: a Python exception
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** stream);
};

const Exchange* exchange = nullptr;
PyTypeObject* classes[2] = {};

const Exchange* table_of(nb::handle tensor_class) {
  PyObject* const capsule = PyObject_GetAttrString(tensor_class.ptr(), "__dlpack_c_exchange_api__");
  const void* table = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : nullptr;
  Py_XDECREF(capsule);
  PyErr_Clear();
  const auto* found = static_cast<const Exchange*>(table);
  while (found && found->major > Exchange::kMajor) found = found->older;
  return found && found->major == Exchange::kMajor && found->view ? found : nullptr;
}

bool read_dtype(const ForeignTensor& t, DType& out) {
  if (t.lanes != 1) return false;
  if (t.code == kFloat && t.bits == 32)
    out = DType::kF32;
  else if (t.code == kFloat && t.bits == 16)
    out = DType::kF16;
  else if (t.code == kBFloat && t.bits == 16)
    out = DType::kBF16;
  else if (t.code == kInt && t.bits == 32)
    out = DType::kI32;
  else
    return false;
  return true;
}

}  // namespace

bool use_exchange(nb::handle tensor_class, nb::handle subclass) {
  exchange = table_of(tensor_class);
  classes[0] = reinterpret_cast<PyTypeObject*>(tensor_class.inc_ref().ptr());
  classes[1] = reinterpret_cast<PyTypeObject*>(subclass.inc_ref().ptr());
  return exchange != nullptr;
}

bool is_exchanged(nb::handle object) {
  const PyTypeObject* const type = Py_TYPE(object.ptr());
  return exchange && (type == classes[0] || type == classes[1]);
}

bool read_exchanged(nb::handle object, Tensor& out) {
  ForeignTensor t;
  if (exchange->view(object.ptr(), &t) != 0) {
    PyErr_Clear();  // a device or a dtype that DLPack has no name for
    return false;
  }
  if (t.rank > kMaxRank || !read_dtype(t, out.dtype)) return false;
  if (t.device_type != kCpuMemory && t.device_type != kCudaMemory) return false;
  out.device.kind = t.device_type == kCpuMemory ? Device::Kind::kCpu : Device::Kind::kCuda;
  out.device.index = t.device_type == kCpuMemory ? 0 : t.device_index;
  out.data = static_cast<char*>(t.data) + t.byte_offset;
  out.rank = t.rank;
  std::copy_n(t.shape, t.rank, out.shape.begin());
  std::copy_n(t.strides, t.rank, out.strides.begin());
  return true;
}

void* exchange_stream(int device_index) {
  void* stream = nullptr;
  if (exchange && exchange->current_stream(kCudaMemory, device_index, &stream) != 0)
    throw nb::python_error();
  return stream;
}

}  // namespace tilewise::python
