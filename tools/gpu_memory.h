// Device memory for the command: the library neither allocates nor copies, so the command asks the
// driver itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tilewise/status.hpp"

namespace tilewise::tools {

using DeviceAddress = std::uint64_t;

// The driver's addresses are numbers, the library's pointers.
inline void* pointer_to(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Makes a device's primary context current on this thread, which stays so.
Status use_gpu(int index);

// Bytes of device memory of the current context, filled with 0xFF: NaN in every floating dtype.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Expected<DeviceBuffer> create(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  DeviceAddress address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  Status copy_in(std::size_t offset, const void* from, std::size_t bytes) const;
  Status copy_out(std::size_t offset, void* to, std::size_t bytes) const;  // waits for the device

 private:
  DeviceAddress address_ = 0;
  std::size_t bytes_ = 0;
};

// Milliseconds that the default stream took between start() and stop().
class GpuTimer {
 public:
  static Expected<GpuTimer> create();
  GpuTimer(GpuTimer&& other) noexcept;
  GpuTimer& operator=(GpuTimer&&) = delete;
  ~GpuTimer();

  Status start() const;
  Expected<double> stop() const;  // waits

 private:
  GpuTimer() = default;
  void* events_[2] = {nullptr, nullptr};
};

}  // namespace tilewise::tools
