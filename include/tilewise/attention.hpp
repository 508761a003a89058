// forward and backward: run a plan on tensors. Both check every tensor against the plan before the
// first byte is read or written, allocate no device memory, never synchronize and never print.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "tilewise/export.h"
#include "tilewise/plan.hpp"

namespace tilewise {

// What attention reads. Shapes: dense / packed with cu_seqlens. Any strides, the last dimension of
// Q, K, V and bias contiguous.
struct Inputs {
  Tensor q;              // (B, Sq, Hq, D) / (total_q, Hq, D)
  Tensor k;              // (B, Sk, Hkv, D) / (total_kv, Hkv, D)
  Tensor v;              // (B, Sk, Hkv, Dv) / (total_kv, Hkv, Dv)
  Tensor alibi_slopes;   // f32 (Hq) or (B, Hq)
  Tensor bias;           // (B|1, Hq|1, Sq|1, Sk|1), i and j counted inside each sequence
  Tensor sink;           // f32 (Hq)
  Tensor cu_seqlens_q;   // i32 (B + 1), from 0 to total_q, never falling
  Tensor cu_seqlens_kv;  // i32 (B + 1)
  Tensor seqused_q;      // i32 (B)
  Tensor seqused_kv;     // i32 (B)
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
};

struct Outputs {
  Tensor o;    // (B, Sq, Hq, Dv) / (total_q, Hq, Dv)
  Tensor lse;  // f32 (B, Hq, Sq) / (Hq, total_q); optional, natural log of the softmax denominator
};

// What the backward reads besides the inputs, and what it writes.
struct Gradients {
  Tensor o, lse;      // the forward's outputs
  Tensor d_o;         // shaped as O
  Tensor d_lse;       // shaped as LSE; optional: no gradient arrives through LSE
  Tensor dq, dk, dv;  // shaped as Q, K, V, in their dtype
  Tensor dbias;       // f32, shaped as bias; optional
  Tensor dsink;       // f32 (Hq); optional
};

// Where to run. The workspace must hold the pass' workspace_bytes and outlive the work.
struct Launch {
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  void* stream = nullptr;  // CUstream on a GPU; ignored on the CPU
};

TILEWISE_EXPORT Status forward(const Plan& plan, const Inputs& in, const Outputs& out,
                               const Launch& launch = {});
TILEWISE_EXPORT Status backward(const Plan& plan, const Inputs& in, const Gradients& grads,
                                const Launch& launch = {});

// A host workspace of the right size and alignment; launch() hands it to forward or backward.
class Workspace {
 public:
  explicit Workspace(const PassPlan& pass)
      : bytes_(pass.workspace_bytes),
        memory_(bytes_ ? ::operator new (bytes_, std::align_val_t{64}) : nullptr) {}
  Launch launch() const { return {memory_.get(), bytes_, nullptr}; }

 private:
  struct Free {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::size_t bytes_;
  std::unique_ptr<void, Free> memory_;
};

}  // namespace tilewise
