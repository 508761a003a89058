#include "cuda/runtime/launch.h"

#include <map>
#include <mutex>

#include "core/environment.h"
#include "core/format.h"
#include "cuda/runtime/cubin_store.h"

namespace tilewise::cuda {
namespace {

struct Loaded {
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, std::string>, Kernel> kernels;  // by context and key
  std::mutex
      loading;  // one at a time: NVRTC works one at a time, and two need not do the same work
};

Loaded& loaded() {
  static Loaded all;
  return all;
}

// Loading may allocate on the device, which a stream that is being captured forbids its thread.
class CaptureRelaxed {
 public:
  explicit CaptureRelaxed(const Driver& driver) : driver_(driver) { driver_.capture_mode(&mode_); }
  ~CaptureRelaxed() { driver_.capture_mode(&mode_); }
  CaptureRelaxed(const CaptureRelaxed&) = delete;
  CaptureRelaxed& operator=(const CaptureRelaxed&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
};

Status load(const Driver& d, const Cubin& cubin, int smem_bytes, Kernel& kernel) {
  const CaptureRelaxed relaxed(d);
  CuModule module = nullptr;
  CuResult r = d.module_load(&module, cubin.code.data());
  if (!r) r = d.module_function(&kernel.function, module, "tilewise_kernel");
  if (!r) r = d.function_set(kernel.function, kMaxDynamicSharedBytes, smem_bytes);
  const Status s = driver_status(d, r, "loading a kernel");
  if (s.ok()) return s;
  return {s.code(),
          format_text("{}; CUDA {} compiled it, the driver supports CUDA {}.{}", s.message(),
                      cubin.compiler, d.version / 1000, d.version % 1000 / 10)};
}

}  // namespace

Expected<Kernel> loaded_kernel(const DeviceContext& device, const std::string& key) {
  const auto d = driver();
  if (!d.ok()) return d.status();
  const ContextScope scope(**d, device);
  const std::lock_guard lock(loaded().mutex);
  const auto found = loaded().kernels.find({scope.id(), key});
  if (found != loaded().kernels.end()) return found->second;
  return Status(StatusCode::kUnavailable, "not loaded yet");
}

Expected<Kernel> load_kernel(const DeviceContext& device, const std::string& key, int smem_bytes,
                             const std::string& source) {
  const std::lock_guard one_at_a_time(loaded().loading);
  if (auto other_thread = loaded_kernel(device, key); other_thread.ok()) return other_thread;
  const auto d = driver();
  if (!d.ok()) return d.status();
  const bool racecheck = environment("TILEWISE_RACECHECK") != nullptr;
  const auto cubin = cubin_store().find(
      racecheck ? "#define TW_EVERY_LANE_ARRIVES\n" + source : source, "sm_90a", (*d)->version);
  if (!cubin.ok()) return cubin.status();
  const ContextScope scope(**d, device);
  Kernel kernel;
  if (const Status s = load(**d, *cubin, smem_bytes, kernel); !s.ok()) return s;
  const std::lock_guard lock(loaded().mutex);
  return loaded().kernels.try_emplace({scope.id(), key}, kernel).first->second;
}

Status launch(const DeviceContext& device, Kernel kernel, Grid grid, void* stream,
              void* parameters) {
  const auto d = driver();
  if (!d.ok()) return d.status();
  const ContextScope scope(**d, device);
  void* arguments[] = {parameters};
  CuLaunchAttribute attribute{
      grid.start == Start::kAllAtOnce ? kCooperative : kOverlapsPrevious, 1, {}};
  const CuLaunch how{grid.ctas,
                     1,
                     1,
                     grid.threads,
                     1,
                     1,
                     grid.smem_bytes,
                     static_cast<CuStream>(stream),
                     &attribute,
                     grid.start == Start::kAfterPrevious ? 0u : 1u};
  const CuResult r = (*d)->launch(&how, kernel.function, arguments, nullptr);
  return driver_status(**d, r, "launching a kernel");
}

}  // namespace tilewise::cuda
