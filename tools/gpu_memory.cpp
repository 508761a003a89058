// See gpu_memory.h. The functions are declared here, from the driver API's documentation.
#include "gpu_memory.h"

#include <fmt/format.h>

#include <utility>

#include "cuda/runtime/driver.h"
#include "cuda/runtime/library.h"

namespace tilewise::tools {
namespace {

struct Functions {
  int (*allocate)(DeviceAddress*, std::size_t);
  int (*free)(DeviceAddress);
  int (*copy_in)(DeviceAddress, const void*, std::size_t);
  int (*copy_out)(void*, DeviceAddress, std::size_t);
  int (*fill)(DeviceAddress, unsigned char, std::size_t);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void* stream);
  int (*event_synchronize)(void*);
  int (*event_elapsed)(float*, void*, void*);
};

Expected<Functions> load() {
  const auto d = cuda::driver();
  if (!d.ok()) return d.status();
  const auto library = cuda::Library::open({"libcuda.so.1"});
  Functions f{};
  if (library.ok() && library->find("cuMemAlloc_v2", f.allocate) &&
      library->find("cuMemFree_v2", f.free) && library->find("cuMemcpyHtoD_v2", f.copy_in) &&
      library->find("cuMemcpyDtoH_v2", f.copy_out) && library->find("cuMemsetD8_v2", f.fill) &&
      library->find("cuEventCreate", f.event_create) &&
      library->find("cuEventDestroy_v2", f.event_destroy) &&
      library->find("cuEventRecord", f.event_record) &&
      library->find("cuEventSynchronize", f.event_synchronize) &&
      library->find("cuEventElapsedTime", f.event_elapsed))
    return f;
  return Status(StatusCode::kUnavailable, "the CUDA driver lacks functions for memory");
}

const Expected<Functions>& functions() {
  static const Expected<Functions> loaded = load();
  return loaded;
}

Status status_of(int result, const char* what) {
  return cuda::driver_status(**cuda::driver(), result, what);
}

}  // namespace

Status use_gpu(int index) {
  if (!functions().ok()) return functions().status();
  const auto device = cuda::device_context(index);
  if (!device.ok()) return device.status();
  return status_of((*cuda::driver())->context_push((*device)->context), "using the CUDA device");
}

Expected<DeviceBuffer> DeviceBuffer::create(std::size_t bytes) {
  DeviceBuffer out;
  if (bytes == 0) return out;
  if (functions()->allocate(&out.address_, bytes) != 0)
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("the GPU has no memory left for {} bytes", bytes));
  out.bytes_ = bytes;
  const Status s = status_of(functions()->fill(out.address_, 0xFF, bytes), "filling GPU memory");
  if (!s.ok()) return s;
  return out;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : address_(std::exchange(other.address_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (address_) functions()->free(address_);
}

Status DeviceBuffer::copy_in(std::size_t offset, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return status_of(functions()->copy_in(address_ + offset, from, bytes), "copying to the GPU");
}

Status DeviceBuffer::copy_out(std::size_t offset, void* to, std::size_t bytes) const {
  if (bytes == 0) return {};
  return status_of(functions()->copy_out(to, address_ + offset, bytes), "copying from the GPU");
}

Expected<GpuTimer> GpuTimer::create() {
  GpuTimer timer;
  for (void*& event : timer.events_) {
    const Status s = status_of(functions()->event_create(&event, 0), "making a GPU event");
    if (!s.ok()) return s;
  }
  return timer;
}

GpuTimer::GpuTimer(GpuTimer&& other) noexcept
    : events_{std::exchange(other.events_[0], nullptr), std::exchange(other.events_[1], nullptr)} {}

GpuTimer::~GpuTimer() {
  for (void* event : events_)
    if (event) functions()->event_destroy(event);
}

Status GpuTimer::start() const {
  return status_of(functions()->event_record(events_[0], nullptr), "timing the GPU");
}

Expected<double> GpuTimer::stop() const {
  float ms = 0;
  int r = functions()->event_record(events_[1], nullptr);
  if (!r) r = functions()->event_synchronize(events_[1]);
  if (!r) r = functions()->event_elapsed(&ms, events_[0], events_[1]);
  const Status s = status_of(r, "the GPU's work");
  if (!s.ok()) return s;
  return ms;
}

}  // namespace tilewise::tools
