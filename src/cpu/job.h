// What a kernel is handed: the problem, its plan, the tensors, the workspace. Everything has been
// checked by then.
#pragma once

#include "tilewise/attention.hpp"

namespace tilewise::cpu {

struct ForwardJob {
  const Problem& problem;
  const PassPlan& pass;
  const Inputs& in;
  const Outputs& out;
  void* workspace;
};

struct BackwardJob {
  const Problem& problem;
  const PassPlan& pass;
  const Inputs& in;
  const Gradients& grads;
  void* workspace;
  bool other_order;  // the forward added up q . k in another order than the backward does
};

using ForwardFn = void (*)(const ForwardJob&);
using BackwardFn = void (*)(const BackwardJob&);

}  // namespace tilewise::cpu
